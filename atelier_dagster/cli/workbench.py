"""The adapters that commands use without Dagster, made from settings. Not here: what commands do with them."""

from __future__ import annotations

from typing import Any, cast

from atelier_dagster.artifacts import ArtifactStore, DirectoryStore, S3Store
from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.factory.ticket import RepoRef, TicketKey
from atelier_dagster.forges import LocalForge, LocalTracker
from atelier_dagster.ports import ObjectStore
from atelier_dagster.settings import Settings

LOCAL = "local"


def local_tracker(settings: Settings) -> LocalTracker:
    """The embedded tracker of this home."""
    return LocalTracker(settings.home.resolve() / "forge", bot=settings.bot)


def local_forge(settings: Settings) -> LocalForge:
    """The embedded forge of this home."""
    return LocalForge(settings.home.resolve() / "forge", bot=settings.bot)


def objects(settings: Settings) -> ObjectStore:
    """The object store that artifacts lie in."""
    if settings.artifacts == "directory":
        return DirectoryStore(settings.home.resolve() / "artifacts")
    return S3Store(_s3_client(settings), settings.s3_bucket, prefix=settings.s3_prefix)


def artifact_store(settings: Settings) -> ArtifactStore:
    """The content-addressed store."""
    return ArtifactStore(objects(settings))


def parse_ticket(text: str) -> TicketKey:
    """A ticket as a person writes it: `tracker/owner/repo#number`, or its partition key. Raises `InvalidInput`."""
    return TicketKey.from_partition(text) if "~" in text and "#" not in text else TicketKey.parse(text)


def parse_repo(text: str) -> RepoRef:
    """A repository as a person writes it; the local tracker's need not name it. Raises `InvalidInput`."""
    return RepoRef.parse(text if text.count("/") > 1 else f"{LOCAL}/{text}")


def require_local(key: TicketKey) -> None:
    """Raise unless the ticket is on the embedded forge: elsewhere people decide on the forge, under their own name."""
    if key.repo.tracker != LOCAL:
        raise InvalidInput(
            f"{key} is not on the local forge", fix="decide on its forge: a review, or a comment `/atelier approve`"
        )


def _s3_client(settings: Settings) -> Any:
    import boto3

    secret = settings.s3_secret_access_key
    return cast(Any, boto3).client(
        "s3",
        endpoint_url=settings.s3_endpoint_url or None,
        region_name=settings.s3_region or None,
        aws_access_key_id=settings.s3_access_key_id or None,
        aws_secret_access_key=secret.get_secret_value() if secret else None,
    )
