"""A ticket's history out of Dagster's storage and the artifact store. Reading only; what follows from it is routing's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast

import dagster as dg

from atelier_dagster.artifacts import ArtifactStore
from atelier_dagster.factory.lineage import ASSETS, Artifact, EndedRun, Entry, History
from atelier_dagster.orchestration import tags

_PER_ASSET = 500
_RUNS = 500
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
    """Reads one ticket's history, and on later calls only what was added since."""

    def __init__(self, instance: dg.DagsterInstance, store: ArtifactStore, partition: str) -> None:
        self._instance = instance
        self._store = store
        self._partition = partition
        self._entries: dict[str, list[Entry]] = {}
        self._seen: dict[str, int] = {}

    async def read(self, assets: Iterable[str] = ASSETS, *, with_runs: bool = False) -> History:
        """The history of `assets` (all by default). Ended runs are read only on request, since routing alone wants them.

        Raises `CorruptArtifact` for an artifact whose bytes do not match its hash.
        """
        wanted = tuple(assets)
        for asset in wanted:
            await self._refresh(asset)
        entries = sorted((e for a in wanted for e in self._entries.get(a, [])), key=lambda e: e.seq)
        runs = self._ended_runs() if with_runs else ()
        return History(ticket=self._partition, entries=tuple(entries), runs=tuple(runs))

    async def _refresh(self, asset: str) -> None:
        result = self._instance.fetch_materializations(
            dg.AssetRecordsFilter(
                asset_key=dg.AssetKey(asset),
                asset_partitions=[self._partition],
                after_storage_id=self._seen.get(asset),
            ),
            limit=_PER_ASSET,
        )
        records = sorted(result.records, key=lambda r: r.storage_id)
        found = await asyncio.gather(*(self._entry(asset, record) for record in records))
        self._entries.setdefault(asset, []).extend(e for e in found if e is not None)
        if records:
            self._seen[asset] = records[-1].storage_id

    async def _entry(self, asset: str, record: dg.EventLogRecord) -> Entry | None:
        materialization = record.asset_materialization
        sha = (materialization.tags or {}).get(tags.DATA_VERSION) if materialization else None
        if sha is None or len(sha) != 64:  # reported from outside without an artifact: proves nothing
            return None
        artifact = cast(Artifact[Any], await self._store.get(self._partition, asset, sha))
        return Entry(asset=asset, sha256=sha, artifact=artifact, seq=_microseconds(record.timestamp))

    def _ended_runs(self) -> Sequence[EndedRun]:
        records = self._instance.get_run_records(
            dg.RunsFilter(tags={tags.PARTITION: self._partition}, statuses=list(_ENDED)), limit=_RUNS
        )
        runs = [
            EndedRun(
                run_id=record.dagster_run.run_id,
                job="" if record.dagster_run.job_name.startswith("__") else record.dagster_run.job_name,
                status=_ENDED[record.dagster_run.status],
                seq=_microseconds(record.end_time or record.update_timestamp.timestamp()),
                error=record.dagster_run.tags.get(tags.ERROR, ""),
            )
            for record in records
        ]
        return sorted(runs, key=lambda run: run.seq)


def active_runs(instance: dg.DagsterInstance, partition: str) -> Sequence[dg.DagsterRun]:
    """Runs of a ticket that are queued or running."""
    return instance.get_runs(dg.RunsFilter(tags={tags.PARTITION: partition}, statuses=list(ACTIVE)), limit=50)
