"""The host's own clean repositories as a resource: nothing an agent can write is ever in them unchecked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from atelier_dagster.delivery import HostRepository
from atelier_dagster.factory.ticket import TicketKey


class RepositoriesResource(dg.ConfigurableResource[Any]):
    """One bare repository a code repository, below `root`."""

    root: str

    def repository(self, key: TicketKey) -> HostRepository:
        """The repository that a ticket's changes go through."""
        repo = key.repo
        return HostRepository(Path(self.root, repo.tracker, *repo.owner.split("/"), f"{repo.name}.git"))
