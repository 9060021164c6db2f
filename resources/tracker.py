"""The issue tracker as a resource."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from atelier_dagster.forges import LocalTracker
from atelier_dagster.ports import Tracker


class TrackerResource(dg.ConfigurableResource[Any]):
    """The embedded tracker: tickets as Markdown files below `root`."""

    root: str
    bot: str = "atelier[bot]"

    def tracker(self) -> Tracker:
        """A client."""
        return LocalTracker(Path(self.root), bot=self.bot)
