"""Workshop backends. Not here: what runs in a workshop, or when."""

from __future__ import annotations

from atelier_dagster.network.hosts import REGISTRIES
from atelier_dagster.workshops._registry import BACKENDS, create_backend
from atelier_dagster.workshops.local import LocalWorkshops

__all__ = ["BACKENDS", "REGISTRIES", "LocalWorkshops", "create_backend"]
