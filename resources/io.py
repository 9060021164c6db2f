"""The I/O manager as a resource over the artifact store."""

from __future__ import annotations

import dagster as dg

from atelier_dagster.artifacts import Ledger
from atelier_dagster.orchestration.io_manager import ArtifactIOManager
from resources.artifacts import ArtifactsResource


class ArtifactIO(dg.ConfigurableIOManagerFactory[ArtifactIOManager]):
    """Makes the I/O manager of a run."""

    artifacts: ArtifactsResource

    def create_io_manager(self, context: dg.InitResourceContext) -> ArtifactIOManager:  # noqa: ARG002
        """One a run."""
        return ArtifactIOManager(self.artifacts.store(), Ledger(self.artifacts.objects()))
