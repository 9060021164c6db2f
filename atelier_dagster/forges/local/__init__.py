"""Tickets and pull requests on a directory, with bare git repositories: no account, network or server."""

from atelier_dagster.forges.local._documents import DocumentUnreadable
from atelier_dagster.forges.local._forge import LocalForge
from atelier_dagster.forges.local._init import TakenIn
from atelier_dagster.forges.local._tracker import LocalTracker

__all__ = ["DocumentUnreadable", "LocalForge", "LocalTracker", "TakenIn"]
