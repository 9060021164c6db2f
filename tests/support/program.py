"""How a command of `atelier` ended, and the type of the fixture that runs one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout, which must be JSON and nothing else."""
        return json.loads(self.out)


Atelier = Callable[..., Ran]
