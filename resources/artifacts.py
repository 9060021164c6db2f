"""The artifact store as a resource: a directory, or S3 through dagster-aws. What is stored is the I/O manager's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import dagster as dg
from pydantic import PrivateAttr

from atelier_dagster.artifacts import ArtifactStore, DirectoryStore, S3Store
from atelier_dagster.ports import ObjectStore


class ArtifactsResource(dg.ConfigurableResource[Any]):
    """Where artifacts and objects are kept."""

    kind: Literal["directory", "s3"] = "directory"
    root: str = ""
    """Directory, with kind `directory`."""
    bucket: str = ""
    prefix: str = ""
    endpoint_url: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    """Give it as `EnvVar`; "" uses the usual AWS credential chain."""

    _store: ArtifactStore | None = PrivateAttr(default=None)

    def objects(self) -> ObjectStore:
        """The bare object store."""
        if self.kind == "directory":
            return DirectoryStore(Path(self.root))
        return S3Store(self._s3_client(), self.bucket, prefix=self.prefix)

    def store(self) -> ArtifactStore:
        """The content-addressed store over it; one a resource, so that its cache serves every step of a run."""
        if self._store is None:
            self._store = ArtifactStore(self.objects())
        return self._store

    def _s3_client(self) -> Any:
        from dagster_aws.s3 import S3Resource

        resource = S3Resource(
            endpoint_url=self.endpoint_url or None,
            region_name=self.region or None,
            aws_access_key_id=self.access_key_id or None,
            aws_secret_access_key=self.secret_access_key or None,
        )
        return resource.get_client()
