"""The chained record of what was stored for a ticket. Belongs here: appending and reading. Not here: verifying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from pydantic import Field, JsonValue, ValidationError, field_validator

from atelier_dagster.artifacts._bounded import gather_bounded
from atelier_dagster.artifacts._keys import join_key
from atelier_dagster.artifacts._store import check_sha256
from atelier_dagster.factory.errors import CorruptArtifact, NotFound, Unavailable
from atelier_dagster.factory.lineage import canonical_json, sha256_hex
from atelier_dagster.factory.ticket import Frozen
from atelier_dagster.ports import ObjectStore

FIRST = "0" * 64
"""`previous` of the first entry."""
_ATTEMPTS = 1000


class LedgerEntry(Frozen):
    """One line: that an artifact was stored, when, by which run, and what it took. `previous` chains it."""

    seq: int = Field(ge=1)
    previous: str
    """SHA-256 of the entry before, as stored; 64 zeros in the first."""
    ticket: str
    asset: str
    sha256: str
    """The artifact's hash."""
    cycle: int = Field(ge=1)
    run_id: str
    time: datetime
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    """What the artifact's hash leaves out: tokens, cost, duration."""

    @field_validator("time")
    @classmethod
    def _in_utc(cls, value: datetime) -> datetime:
        if value.tzinfo is None:
            raise ValueError("a ledger's time needs a time zone")
        return value.astimezone(UTC)

    def canonical(self) -> bytes:
        """The bytes that are stored and hashed."""
        return canonical_json(self.model_dump(mode="json"))


def entry_key(ticket: str, seq: int) -> str:
    """Key of a ticket's entry."""
    return join_key("ledger", ticket, f"{seq:08d}.json")


def read_entry(key: str, data: bytes) -> LedgerEntry:
    """The entry in stored bytes. Raises `CorruptArtifact`."""
    try:
        entry = LedgerEntry.model_validate_json(data)
    except ValidationError as error:
        raise CorruptArtifact(f"ledger entry {key} cannot be read", fix="restore it from a backup") from error
    if entry.canonical() != data or entry_key(entry.ticket, entry.seq) != key:
        raise CorruptArtifact(f"ledger entry {key} is not the one that was written", fix="restore it from a backup")
    return entry


class Ledger:
    """An append-only ledger of each ticket: one write-once object a line, each with the hash of the line before.

    It needs no append and no lock: of writers that want the same place one wins, and the others take the next.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._tails: dict[str, tuple[int, str]] = {}

    async def append(
        self,
        ticket: str,
        *,
        asset: str,
        sha256: str,
        cycle: int,
        run_id: str,
        time: datetime,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> LedgerEntry:
        """Record that an artifact was stored. Raises `Unavailable`, `CorruptArtifact` (a damaged last entry)."""
        check_sha256(sha256)
        seq, previous = await self._tail(ticket)
        for _ in range(_ATTEMPTS):
            entry = LedgerEntry(
                seq=seq + 1,
                previous=previous,
                ticket=ticket,
                asset=asset,
                sha256=sha256,
                cycle=cycle,
                run_id=run_id,
                time=time,
                metadata=dict(metadata or {}),
            )
            key, data = entry_key(ticket, entry.seq), entry.canonical()
            if not await self._store.put_if_absent(key, data, "application/json"):
                data = await self._store.get(key)
                read_entry(key, data)
                seq, previous = entry.seq, sha256_hex(data)
                continue
            self._remember(ticket, entry.seq, sha256_hex(data))
            return entry
        raise Unavailable(f"other writers kept taking the next place in the ledger of {ticket}", fix="run it again")

    async def entries(self, ticket: str) -> Sequence[LedgerEntry]:
        """All entries, oldest first. Raises `CorruptArtifact` for one that cannot be read."""
        keys = await self._store.list(join_key("ledger", ticket))
        stored = await gather_bounded(self._store.get, keys)
        return [read_entry(key, data) for key, data in zip(keys, stored, strict=True)]

    async def _tail(self, ticket: str) -> tuple[int, str]:
        if ticket in self._tails:
            return self._tails[ticket]
        keys = await self._store.list(join_key("ledger", ticket))
        if not keys:
            return 0, FIRST
        data = await self._store.get(keys[-1])
        return read_entry(keys[-1], data).seq, sha256_hex(data)

    def _remember(self, ticket: str, seq: int, digest: str) -> None:
        if len(self._tails) >= 1000:
            self._tails.clear()
        self._tails[ticket] = (seq, digest)


async def get_or_none(store: ObjectStore, key: str) -> bytes | None:
    """Content of an object that may be missing; a store that fails still raises."""
    try:
        return await store.get(key)
    except NotFound:
        return None
