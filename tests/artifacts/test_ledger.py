"""The chained ledger: concurrent writers, restarts, and damage that verification must find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from atelier_dagster.artifacts import ArtifactStore, DirectoryStore, Ledger
from atelier_dagster.artifacts.audit import Audit, verify
from atelier_dagster.factory.change import Evidence, ObjectRef, QaReport
from atelier_dagster.factory.errors import CorruptArtifact, InvalidInput
from atelier_dagster.factory.lineage import Artifact, sha256_hex
from atelier_dagster.factory.ticket import Analysis
from atelier_dagster.factory.verdict import QaDecision, QaVerdict

TICKET = "local~demo~shop~1"
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
OTHER = sha256_hex(b"other")


async def record(ledger: Ledger, sha256: str, asset: str = "analysis", ticket: str = TICKET, **metadata: Any) -> None:
    await ledger.append(ticket, asset=asset, sha256=sha256, cycle=1, run_id="run-1", time=NOON, metadata=metadata)


@pytest.fixture
async def recorded(directory: DirectoryStore, analysis: Artifact[Any]) -> Artifact[Any]:
    """An analysis made from another artifact, and a QA report with evidence; both in the ledger."""
    store, ledger = ArtifactStore(directory), Ledger(directory)
    base = analysis.model_copy(update={"inputs": {}})
    made = analysis.model_copy(update={"attempt": 2, "inputs": {"analysis": base.sha256}})
    shot = await store.put_evidence(TICKET, 1, "shot.png", b"png", "image/png")
    lost = ObjectRef(sha256=OTHER, size=1)
    verdict = QaVerdict(verdict=QaDecision.PASS, evidence_files=("shot.png",))
    evidence = (Evidence(path="shot.png", object=shot), Evidence(path="lost", object=lost, uploaded=False))
    report = QaReport(commit="c" * 40, verdict=verdict, evidence=evidence)
    last = Artifact[QaReport](asset="qa_report", ticket=TICKET, cycle=1, inputs={"analysis": made.sha256}, value=report)
    for artifact in (base, made, last):
        await record(ledger, await store.put(artifact), artifact.asset, tokens=12, cost=0.5)
    return made


async def test_entries_are_chained_in_order(directory: DirectoryStore) -> None:
    ledger = Ledger(directory)
    for number in range(5):
        await record(ledger, sha256_hex(bytes([number])), tokens=number)
    entries = await Ledger(directory).entries(TICKET)
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5]
    assert entries[0].previous == "0" * 64
    assert [entry.previous for entry in entries[1:]] == [sha256_hex(entry.canonical()) for entry in entries[:-1]]
    assert entries[3].metadata == {"tokens": 3}
    assert list(await ledger.entries("local~demo~shop~2")) == []


async def test_writers_at_the_same_time_lose_nothing(directory: DirectoryStore) -> None:
    ledgers = [Ledger(directory) for _ in range(5)]
    hashes = [sha256_hex(bytes([number])) for number in range(40)]
    await asyncio.gather(*(record(ledgers[n % 5], sha256) for n, sha256 in enumerate(hashes)))
    entries = await ledgers[0].entries(TICKET)
    assert sorted(entry.sha256 for entry in entries) == sorted(hashes)
    assert [entry.seq for entry in entries] == list(range(1, 41))
    assert not [fault for fault in (await verify(directory, TICKET)).broken if fault.kind == "ledger"]


async def test_a_ledger_goes_on_after_a_restart_and_beside_another(directory: DirectoryStore) -> None:
    first, second = Ledger(directory), Ledger(directory)
    for ledger in (first, second, first, Ledger(directory), second):
        await record(ledger, OTHER)
    assert [entry.seq for entry in await first.entries(TICKET)] == [1, 2, 3, 4, 5]


async def test_times_are_kept_in_utc_and_need_a_zone(directory: DirectoryStore) -> None:
    ledger = Ledger(directory)
    tokyo = datetime(2026, 11, 1, 21, tzinfo=timezone(timedelta(hours=9)))
    entry = await ledger.append(TICKET, asset="plan", sha256=OTHER, cycle=1, run_id="", time=tokyo)
    assert (await ledger.entries(TICKET))[0].time == entry.time == NOON
    with pytest.raises(ValidationError):
        naive = datetime(2026, 11, 1)  # noqa: DTZ001
        await ledger.append(TICKET, asset="plan", sha256=OTHER, cycle=1, run_id="", time=naive)


@pytest.mark.parametrize(("ticket", "sha256"), [("../x", OTHER), ("a/b", OTHER), (TICKET, "no hash")])
async def test_only_plain_names_are_recorded(directory: DirectoryStore, ticket: str, sha256: str) -> None:
    with pytest.raises(InvalidInput):
        await record(Ledger(directory), sha256, ticket=ticket)


async def test_nothing_is_chained_to_a_damaged_entry(directory: DirectoryStore, root: Path) -> None:
    await record(Ledger(directory), OTHER)
    (root / f"ledger/{TICKET}/00000001.json").write_bytes(b"{}")
    with pytest.raises(CorruptArtifact):
        await record(Ledger(directory), OTHER)


# ------------------------------------------------------------------------------------------------- verification


@pytest.mark.usefixtures("recorded")
async def test_what_was_recorded_is_intact(directory: DirectoryStore) -> None:
    audit = await verify(directory, TICKET)
    assert audit.intact
    assert audit.broken == []
    assert len(audit.entries) == len(audit.artifacts) == 3
    assert [ref.media_type for ref in audit.objects] == ["image/png"]
    assert audit.unrecorded == []


async def test_a_ticket_without_records_is_empty(directory: DirectoryStore) -> None:
    assert await verify(directory, TICKET) == Audit(TICKET, entries=[], objects=[], broken=[], unrecorded=[])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def drop(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def stored(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("damage", [flip, drop, empty])
@pytest.mark.parametrize("number", range(7))
async def test_any_damage_to_anything_stored_is_found(
    directory: DirectoryStore, root: Path, number: int, damage: Callable[[Path], object]
) -> None:
    paths = stored(root)
    assert len(paths) == 7
    damage(paths[number])
    audit = await verify(directory, TICKET)
    last_entry = paths[number].name == "00000003.json" and not paths[number].exists()
    # a ledger cut off at its end is still a chain: what betrays it are artifacts that it no longer names
    assert audit.intact is last_entry
    assert bool(audit.unrecorded) is (paths[number].parent.parent.name == "ledger")


async def test_an_input_that_is_gone_is_found_though_never_recorded(directory: DirectoryStore, root: Path) -> None:
    value = Analysis(job_story="s", criteria=("a", "b"))
    made = Artifact[Analysis](asset="analysis", ticket=TICKET, cycle=1, inputs={"ticket": OTHER}, value=value)
    await record(Ledger(directory), await ArtifactStore(directory).put(made))
    (fault,) = (await verify(directory, TICKET)).broken
    assert fault.kind == "input"
    assert OTHER in fault.key


@pytest.mark.usefixtures("recorded")
async def test_an_entry_that_lies_about_its_cycle_is_found(directory: DirectoryStore, analysis: Artifact[Any]) -> None:
    sha256 = await ArtifactStore(directory).put(analysis.model_copy(update={"inputs": {}, "attempt": 9}))
    await Ledger(directory).append(TICKET, asset="analysis", sha256=sha256, cycle=2, run_id="", time=NOON)
    (fault,) = (await verify(directory, TICKET)).broken
    assert "cycle" in fault.reason


@pytest.mark.usefixtures("recorded")
async def test_a_replaced_chain_is_found_at_the_first_entry_that_does_not_fit(
    directory: DirectoryStore, root: Path
) -> None:
    other = DirectoryStore(root / "other")
    await Ledger(other).append(TICKET, asset="plan", sha256=OTHER, cycle=1, run_id="forged", time=NOON)
    forged = await other.get(f"ledger/{TICKET}/00000001.json")
    (root / f"ledger/{TICKET}/00000001.json").write_bytes(forged)
    broken = (await verify(directory, TICKET)).broken
    assert [fault.seq for fault in broken if fault.kind == "ledger"] == [2]
