"""The chain of evidence of a ticket, shown and verified. Belongs here: every hash recomputed. Not here: its looks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pydantic import BaseModel

from atelier_dagster.artifacts._bounded import gather_bounded
from atelier_dagster.artifacts._keys import join_key
from atelier_dagster.artifacts._ledger import FIRST, LedgerEntry, get_or_none, read_entry
from atelier_dagster.artifacts._store import artifact_key, read_artifact
from atelier_dagster.factory.change import ObjectRef
from atelier_dagster.factory.errors import CorruptArtifact, InvalidInput
from atelier_dagster.factory.lineage import Artifact, sha256_hex
from atelier_dagster.ports import ObjectStore


@dataclass(frozen=True)
class Broken:
    """One thing that is not as it was recorded."""

    kind: Literal["ledger", "artifact", "input", "object"]
    key: str
    reason: str
    seq: int | None = None
    """The ledger entry that led there."""


@dataclass(frozen=True)
class Audit:
    """All that is recorded of a ticket, and what of it is broken."""

    ticket: str
    entries: Sequence[LedgerEntry] = ()
    artifacts: Mapping[str, Artifact[Any]] = field(default_factory=dict[str, Artifact[Any]])
    """By hash; broken ones are missing."""
    objects: Sequence[ObjectRef] = ()
    """What the artifacts name, each once."""
    broken: Sequence[Broken] = ()
    unrecorded: Sequence[str] = ()
    """Keys of artifacts that no ledger entry names: a run died between the two writes, or entries were removed."""

    @property
    def intact(self) -> bool:
        """Whether every hash fits."""
        return not self.broken


@dataclass(frozen=True)
class Line:
    """One recorded artifact, as it is shown. `artifact` is None when it is broken."""

    entry: LedgerEntry
    artifact: Artifact[Any] | None
    faults: Sequence[Broken] = ()


def show(audit: Audit) -> Sequence[Line]:
    """The chain of evidence, oldest first, with what is wrong at each place."""
    return [
        Line(entry, audit.artifacts.get(entry.sha256), [fault for fault in audit.broken if fault.seq == entry.seq])
        for entry in audit.entries
    ]


async def verify(store: ObjectStore, ticket: str) -> Audit:
    """Recompute every hash from the ledger down to the objects that artifacts name.

    Raises `Unavailable` when the store cannot be read: that is no finding.
    """
    entries, broken = await _read_chain(store, ticket)
    artifacts, more = await _read_artifacts(store, entries)
    broken += more
    broken += await _check_inputs(store, ticket, artifacts)
    objects, more = await _check_objects(store, artifacts)
    stored = await store.list(join_key("artifacts", ticket))
    named = {artifact_key(ticket, entry.asset, entry.sha256) for entry in entries}
    return Audit(
        ticket=ticket,
        entries=entries,
        artifacts={sha256: artifact for (_, sha256), artifact in artifacts.items()},
        objects=objects,
        broken=[*broken, *more],
        unrecorded=[key for key in stored if key not in named],
    )


async def _read_chain(store: ObjectStore, ticket: str) -> tuple[list[LedgerEntry], list[Broken]]:
    keys = await store.list(join_key("ledger", ticket))
    stored = await gather_bounded(store.get, keys)
    entries: list[LedgerEntry] = []
    broken: list[Broken] = []
    previous, seq = FIRST, 0
    for key, data in zip(keys, stored, strict=True):
        seq += 1
        try:
            entry = read_entry(key, data)
        except CorruptArtifact as error:
            broken.append(Broken("ledger", key, error.message, seq))
        else:
            entries.append(entry)
            broken += _chain_faults(key, entry, seq, previous)
            seq = entry.seq
        previous = sha256_hex(data)
    return entries, broken


def _chain_faults(key: str, entry: LedgerEntry, seq: int, previous: str) -> Iterator[Broken]:
    if entry.seq != seq:
        yield Broken("ledger", key, f"entries {seq} to {entry.seq - 1} are missing", entry.seq)
    elif entry.previous != previous:
        yield Broken("ledger", key, "the entry before it is not the one that it was chained to", entry.seq)


_Artifacts = dict[tuple[str, str], Artifact[Any]]


async def _read_artifacts(store: ObjectStore, entries: Sequence[LedgerEntry]) -> tuple[_Artifacts, list[Broken]]:
    wanted = list({(entry.asset, entry.sha256): entry for entry in entries}.values())
    found: _Artifacts = {}
    broken: list[Broken] = []
    for entry, read in zip(wanted, await gather_bounded(lambda e: _read_one(store, e), wanted), strict=True):
        if isinstance(read, Broken):
            broken.append(read)
        else:
            found[(entry.asset, entry.sha256)] = read
    return found, broken


async def _read_one(store: ObjectStore, entry: LedgerEntry) -> Artifact[Any] | Broken:
    key = artifact_key(entry.ticket, entry.asset, entry.sha256)
    data = await get_or_none(store, key)
    if data is None:
        return Broken("artifact", key, "it is missing", entry.seq)
    try:
        artifact = read_artifact(entry.ticket, entry.asset, entry.sha256, data)
    except CorruptArtifact as error:
        return Broken("artifact", key, error.message, entry.seq)
    if artifact.cycle != entry.cycle:
        return Broken("artifact", key, f"it is of cycle {artifact.cycle}, the ledger says {entry.cycle}", entry.seq)
    return artifact


async def _check_inputs(store: ObjectStore, ticket: str, artifacts: _Artifacts) -> list[Broken]:
    """Everything that a recorded decision was made from must be there too, recorded or not."""
    named = {pair for artifact in artifacts.values() for pair in [*artifact.inputs.items(), *artifact.feedback.items()]}
    missing = sorted(named - artifacts.keys())
    checked = await gather_bounded(lambda pair: _check_input(store, ticket, *pair), missing)
    return [fault for fault in checked if fault]


async def _check_input(store: ObjectStore, ticket: str, asset: str, sha256: str) -> Broken | None:
    try:
        key = artifact_key(ticket, asset, sha256)
    except InvalidInput as error:
        return Broken("input", f"{asset}:{sha256}", error.message)
    data = await get_or_none(store, key)
    if data is None:
        return Broken("input", key, "an artifact was made from it, and it is missing")
    return None if sha256_hex(data) == sha256 else Broken("input", key, "its bytes do not match its hash")


async def _check_objects(store: ObjectStore, artifacts: _Artifacts) -> tuple[list[ObjectRef], list[Broken]]:
    refs: dict[str, ObjectRef] = {}
    for artifact in artifacts.values():
        for ref in object_refs(artifact.value):
            refs.setdefault(object_key(ref), ref)
    faults = await gather_bounded(lambda ref: _check_object(store, ref), refs.values())
    return list(refs.values()), [fault for fault in faults if fault]


async def _check_object(store: ObjectStore, ref: ObjectRef) -> Broken | None:
    key = object_key(ref)
    try:
        data = await get_or_none(store, key)
    except InvalidInput as error:
        return Broken("object", key, error.message)
    if data is None:
        return Broken("object", key, "it is missing")
    fits = len(data) == ref.size and await asyncio.to_thread(sha256_hex, data) == ref.sha256
    return None if fits else Broken("object", key, "its bytes do not match its hash")


def object_key(ref: ObjectRef) -> str:
    """Where an object is kept."""
    return ref.key or f"objects/{ref.sha256}"


def object_refs(value: Any) -> Iterator[ObjectRef]:
    """Every object that a value names, at any depth. Evidence that was never uploaded is not kept anywhere."""
    if isinstance(value, ObjectRef):
        yield value
    elif getattr(value, "uploaded", True) is False:
        return
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from object_refs(getattr(value, name))
    elif isinstance(value, tuple | list):
        for item in cast("Sequence[Any]", value):
            yield from object_refs(item)
    elif isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            yield from object_refs(item)
