"""Trackers and forges, and the registry that names them. Not here: what the journey does with them."""

from atelier_dagster.forges.local import DocumentUnreadable, LocalForge, LocalTracker, TakenIn
from atelier_dagster.forges.registry import Backend, ForgeOptions, backend_kinds, connect

__all__ = [
    "Backend",
    "DocumentUnreadable",
    "ForgeOptions",
    "LocalForge",
    "LocalTracker",
    "TakenIn",
    "backend_kinds",
    "connect",
]
