"""The git forge as a resource."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from atelier_dagster.forges import LocalForge
from atelier_dagster.ports import Forge


class ForgeResource(dg.ConfigurableResource[Any]):
    """The embedded forge: bare repositories and pull requests below `root`."""

    root: str
    bot: str = "atelier[bot]"

    def forge(self) -> Forge:
        """A client."""
        return LocalForge(Path(self.root), bot=self.bot)
