"""Artifacts and large objects by their hash. Belongs here: keys, checks, the cache. Not here: kinds of storage."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

from atelier_dagster.artifacts._keys import join_key
from atelier_dagster.factory.change import ObjectRef
from atelier_dagster.factory.errors import CorruptArtifact, InvalidInput
from atelier_dagster.factory.lineage import Artifact, parse_artifact, sha256_hex
from atelier_dagster.ports import ObjectStore

_SHA256 = re.compile(r"[0-9a-f]{64}")
_JSON = "application/json"
_LONGEST_NAME = 120


def artifact_key(ticket: str, asset: str, sha256: str) -> str:
    """Key of an artifact. Raises `InvalidInput` when a part is no valid segment."""
    return join_key("artifacts", ticket, asset, f"{check_sha256(sha256)}.json")


def check_sha256(sha256: str) -> str:
    """The hash itself. Raises `InvalidInput` unless it is 64 lower-case hex digits."""
    if not _SHA256.fullmatch(sha256):
        raise InvalidInput(f"{sha256[:80]!r} is not a SHA-256", fix="give 64 lower-case hex digits")
    return sha256


def read_artifact(ticket: str, asset: str, sha256: str, data: bytes) -> Artifact[Any]:
    """The artifact that stored bytes hold. Raises `CorruptArtifact` unless hash, form, ticket and asset all fit."""
    if sha256_hex(data) != sha256:
        raise _corrupt(ticket, asset, sha256, "its bytes do not match its hash")
    try:
        artifact = parse_artifact(asset, data)
    except (InvalidInput, CorruptArtifact) as error:
        raise _corrupt(ticket, asset, sha256, f"it cannot be read: {error.message}") from error
    if (artifact.ticket, artifact.asset) != (ticket, asset):
        raise _corrupt(ticket, asset, sha256, f"it belongs to {artifact.asset} of {artifact.ticket}")
    return artifact


def _corrupt(ticket: str, asset: str, sha256: str, reason: str) -> CorruptArtifact:
    return CorruptArtifact(
        f"artifact {asset} {sha256[:12]} of {ticket}: {reason}",
        fix="restore it from a backup of the store, or materialize the asset again",
    )


class ArtifactStore:
    """Artifacts and objects on an `ObjectStore`, filed under their SHA-256 and never overwritten.

    What was read once is kept in memory, up to `cache_bytes` of stored JSON: it cannot change.
    """

    def __init__(self, store: ObjectStore, cache_bytes: int = 64_000_000) -> None:
        self.objects = store
        self._cache = _Cache(cache_bytes)

    async def put(self, artifact: Artifact[Any]) -> str:
        """Store an artifact and give its hash; storing it again changes nothing. Raises `CorruptArtifact`."""
        data = artifact.canonical()
        sha256 = sha256_hex(data)
        key = artifact_key(artifact.ticket, artifact.asset, sha256)
        await self._put(key, data, _JSON)
        self._cache.put(key, artifact, len(data))
        return sha256

    async def get(self, ticket: str, asset: str, sha256: str) -> Artifact[Any]:
        """The artifact with that hash. Raises `NotFound`, `CorruptArtifact`, `Unavailable`."""
        key = artifact_key(ticket, asset, sha256)
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        data = await self.objects.get(key)
        artifact = read_artifact(ticket, asset, sha256, data)
        self._cache.put(key, artifact, len(data))
        return artifact

    async def put_object(self, data: bytes, media_type: str = "application/octet-stream") -> ObjectRef:
        """Store something large by its hash; the same content is stored once."""
        return await self._put_ref(join_key("objects", sha256_hex(data)), data, media_type)

    async def put_evidence(self, ticket: str, cycle: int, name: str, data: bytes, media_type: str) -> ObjectRef:
        """Store a file that QA left. `name` is untrusted: its last part, reduced to safe characters, ends the key."""
        safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name.rsplit("/", 1)[-1])[-_LONGEST_NAME:]
        return await self._put_ref(join_key("qa", ticket, str(cycle), f"{sha256_hex(data)}-{safe}"), data, media_type)

    async def get_object(self, ref: ObjectRef, *, verify: bool = True) -> bytes:
        """Content of an object. Raises `NotFound`, `CorruptArtifact`, `Unavailable`."""
        key = ref.key or join_key("objects", check_sha256(ref.sha256))
        data = await self.objects.get(key)
        if verify and (len(data) != ref.size or sha256_hex(data) != ref.sha256):
            raise CorruptArtifact(f"object {key}: its bytes do not match its hash", fix="restore it from a backup")
        return data

    async def _put_ref(self, key: str, data: bytes, media_type: str) -> ObjectRef:
        await self._put(key, data, media_type)
        return ObjectRef(sha256=sha256_hex(data), size=len(data), media_type=media_type, key=key)

    async def _put(self, key: str, data: bytes, media_type: str) -> None:
        if await self.objects.put_if_absent(key, data, media_type):
            return
        # what is there was written by an earlier attempt, or was damaged since: only the first may pass for stored
        if await self.objects.get(key) != data:
            raise CorruptArtifact(f"{key} holds other bytes than its hash says", fix="restore it from a backup")


class _Cache:
    """Least recently used artifacts, bounded by the size of their JSON."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[str, tuple[Artifact[Any], int]] = OrderedDict()
        self._size = 0

    def get(self, key: str) -> Artifact[Any] | None:
        if key not in self._held:
            return None
        self._held.move_to_end(key)
        return self._held[key][0]

    def put(self, key: str, artifact: Artifact[Any], size: int) -> None:
        if size > self._limit or key in self._held:
            return
        self._held[key] = (artifact, size)
        self._size += size
        while self._size > self._limit:
            self._size -= self._held.popitem(last=False)[1][1]
