"""Where evidence is kept: objects under write-once keys, artifacts by hash, and a chained ledger of each ticket."""

from atelier_dagster.artifacts._directory import DirectoryStore
from atelier_dagster.artifacts._ledger import Ledger, LedgerEntry
from atelier_dagster.artifacts._s3 import S3Client, S3Store
from atelier_dagster.artifacts._store import ArtifactStore, artifact_key

__all__ = ["ArtifactStore", "DirectoryStore", "Ledger", "LedgerEntry", "S3Client", "S3Store", "artifact_key"]
