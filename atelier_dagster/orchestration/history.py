"""A ticket's history out of Dagster's storage and the artifact store. Reading only; routing says what follows."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from atelier_dagster.artifacts import ArtifactStore
from atelier_dagster.factory.errors import InvalidInput, NotFound
from atelier_dagster.factory.lineage import ASSETS, EndedRun, Entry, History
from atelier_dagster.orchestration import tags

_PER_ASSET = 500
_RUNS = 500
_CLOCK_SKEW = timedelta(seconds=5)
_ENDED: dict[dg.DagsterRunStatus, Any] = {
    dg.DagsterRunStatus.SUCCESS: "success",
    dg.DagsterRunStatus.FAILURE: "failure",
    dg.DagsterRunStatus.CANCELED: "cancelled",
}
ACTIVE = (
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
    dg.DagsterRunStatus.MANAGED,
)
"""Statuses of a run that may still do something."""


def _microseconds(timestamp: float | None) -> int:
    return int((timestamp or 0.0) * 1e6)


class HistoryReader:
    """Reads one ticket's history."""

    def __init__(self, instance: dg.DagsterInstance, store: ArtifactStore, partition: str) -> None:
        self._instance = instance
        self._store = store
        self.partition = partition

    async def read(self, assets: Iterable[str] = ASSETS, *, with_runs: bool = False) -> History:
        """The history of `assets` (all by default), with ended runs on request: routing alone wants them.

        Raises `CorruptArtifact` for an artifact whose bytes do not match its hash.
        """
        records = [record for asset in assets for record in self._records(asset)]
        runs = self._ended_runs() if with_runs else ()
        return History(ticket=self.partition, entries=await self.entries(records), runs=tuple(runs))

    async def entries(self, records: Sequence[dg.EventLogEntry]) -> tuple[Entry, ...]:
        """Entries of materialization events, without those that name no artifact."""
        found = await asyncio.gather(*(self._entry(record) for record in records))
        return tuple(entry for entry in found if entry is not None)

    def _records(self, asset: str) -> list[dg.EventLogEntry]:
        result = self._instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=[self.partition]), limit=_PER_ASSET
        )
        return [record.event_log_entry for record in result.records]

    async def _entry(self, event: dg.EventLogEntry) -> Entry | None:
        materialization = event.asset_materialization
        if materialization is None or materialization.partition != self.partition:
            return None
        asset = materialization.asset_key.path[-1]
        sha = (materialization.tags or {}).get(tags.DATA_VERSION, "")
        if asset not in ASSETS:
            return None
        try:
            artifact = await self._store.get(self.partition, asset, sha)
        except InvalidInput:  # reported from outside without an artifact: proves nothing, and stops nothing
            return None
        except NotFound:
            if event.run_id:  # a run stored it first: it was lost since, and a person must know
                raise
            return None
        return Entry(asset=asset, sha256=sha, artifact=artifact, seq=_microseconds(event.timestamp))

    def _ended_runs(self) -> Sequence[EndedRun]:
        records = self._instance.get_run_records(
            dg.RunsFilter(tags={tags.PARTITION: self.partition}, statuses=list(_ENDED)), limit=_RUNS
        )
        return [
            EndedRun(
                run_id=record.dagster_run.run_id,
                job="" if record.dagster_run.job_name.startswith("__") else record.dagster_run.job_name,
                status=_ENDED[record.dagster_run.status],
                seq=_microseconds(record.end_time or record.update_timestamp.timestamp()),
                error=record.dagster_run.tags.get(tags.ERROR, ""),
            )
            for record in records
        ]


class RunHistory:
    """The ticket's history as seen from inside one of its runs.

    A ticket has one run at a time, so after the first look only this run's own events are new. Where another run of
    the ticket was active all the same (one started outside the queue), everything is read again.
    """

    def __init__(self, reader: HistoryReader, instance: dg.DagsterInstance, run_id: str) -> None:
        self._reader = reader
        self._instance = instance
        self._run_id = run_id
        self._before: tuple[Entry, ...] | None = None
        self._looked = datetime.now(UTC)

    async def read(self) -> History:
        """Everything that has been materialized so far."""
        if self._before is None or self._others_since():
            self._looked = datetime.now(UTC)
            self._before = (await self._reader.read()).entries
        records = self._instance.get_records_for_run(
            self._run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION, limit=_PER_ASSET
        ).records
        own = await self._reader.entries([record.event_log_entry for record in records])
        known = {(entry.asset, entry.sha256, entry.seq) for entry in self._before}
        fresh = tuple(entry for entry in own if (entry.asset, entry.sha256, entry.seq) not in known)
        return History(ticket=self._reader.partition, entries=self._before + fresh)

    def _others_since(self) -> bool:
        filters = dg.RunsFilter(tags={tags.PARTITION: self._reader.partition}, updated_after=self._looked - _CLOCK_SKEW)
        return any(run.run_id != self._run_id for run in self._instance.get_runs(filters, limit=5))


_RUN_HISTORIES: OrderedDict[tuple[str, str], RunHistory] = OrderedDict()
_KEPT = 4


def run_history(instance: dg.DagsterInstance, store: ArtifactStore, partition: str, run_id: str) -> RunHistory:
    """The one `RunHistory` of a run in this process: the I/O manager and the steps look through the same eyes."""
    key = (run_id, partition)
    if key not in _RUN_HISTORIES:
        _RUN_HISTORIES[key] = RunHistory(HistoryReader(instance, store, partition), instance, run_id)
        while len(_RUN_HISTORIES) > _KEPT:
            _RUN_HISTORIES.popitem(last=False)
    return _RUN_HISTORIES[key]


def active_runs(instance: dg.DagsterInstance, partition: str) -> Sequence[dg.DagsterRun]:
    """Runs of a ticket that are queued or running."""
    return instance.get_runs(dg.RunsFilter(tags={tags.PARTITION: partition}, statuses=list(ACTIVE)), limit=50)


def newest_run(instance: dg.DagsterInstance, partition: str) -> dg.RunRecord | None:
    """The run of a ticket that was created last, ended or not."""
    records = instance.get_run_records(dg.RunsFilter(tags={tags.PARTITION: partition}), limit=1)
    return records[0] if records else None
