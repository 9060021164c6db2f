"""Watches journeys in Dagster's storage. Cost is in proportion to what happened since the last look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from pydantic import BaseModel

from atelier_dagster.artifacts import ArtifactStore
from atelier_dagster.cli.demo.journey import Journey, Made, RunSeen
from atelier_dagster.cli.standing import verdict_word
from atelier_dagster.factory.budgets import Policy
from atelier_dagster.factory.change import DiffStat, Integration, Outcome, PullRequest, QaReport
from atelier_dagster.factory.plan import ArchitectureReview, Plan
from atelier_dagster.factory.routing import next_step
from atelier_dagster.factory.verdict import Review
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.history import ACTIVE, HistoryReader

_PER_LOOK = 200
_RUNS = 500
_ENDED = {
    dg.DagsterRunStatus.SUCCESS: "success",
    dg.DagsterRunStatus.FAILURE: "failure",
    dg.DagsterRunStatus.CANCELED: "cancelled",
}


class Watcher:
    """Keeps journeys up to date with what is recorded."""

    def __init__(
        self, instance: dg.DagsterInstance, store: ArtifactStore, policy: Policy, journeys: Sequence[Journey]
    ) -> None:
        self._instance = instance
        self._store = store
        self._policy = policy
        self._journeys = {journey.key.partition: journey for journey in journeys}
        self._readers = {name: HistoryReader(instance, store, name) for name in self._journeys}
        self._cursors: dict[str, str] = {}
        self._read: set[str] = set()
        """Runs that had ended when their events were last read."""

    async def look(self) -> Sequence[tuple[Journey, Made | RunSeen]]:
        """Take in what is new; returns it, oldest first."""
        changed = self._runs()
        made = await self._materializations()
        for partition in {j.key.partition for j, _ in [*made, *changed]}:
            await self._route(self._journeys[partition])
        return [*made, *changed]

    async def _materializations(self) -> list[tuple[Journey, Made]]:
        """Of runs that go on, or have ended since the last look: one query each."""
        found: list[tuple[Journey, Made]] = []
        for journey in self._journeys.values():
            for run in journey.runs.values():
                if run.run_id not in self._read:
                    found += await self._of_run(journey, run)
        return sorted(found, key=lambda each: each[1].at)

    async def _of_run(self, journey: Journey, run: RunSeen) -> list[tuple[Journey, Made]]:
        page = self._instance.get_records_for_run(
            run.run_id, self._cursors.get(run.run_id), dg.DagsterEventType.ASSET_MATERIALIZATION, _PER_LOOK
        )
        self._cursors[run.run_id] = page.cursor
        if run.status != "active" and not page.has_more:
            self._read.add(run.run_id)
        made = [await self._made(journey, record) for record in page.records]
        journey.made += [each for each in made if each]
        return [(journey, each) for each in made if each]

    async def _made(self, journey: Journey, record: dg.EventLogRecord) -> Made | None:
        event = record.asset_materialization
        sha = (event.tags or {}).get(tags.DATA_VERSION, "") if event else ""
        if event is None or event.partition != journey.key.partition or len(sha) != 64:
            return None
        asset = event.asset_key.path[-1]
        artifact = await self._store.get(journey.key.partition, asset, sha)
        metadata = event.metadata
        return Made(
            asset=asset,
            sha256=sha,
            run_id=record.run_id,
            at=record.timestamp,
            cycle=artifact.cycle,
            round=artifact.round,
            attempt=artifact.attempt,
            verdict=verdict_word(artifact.value),
            remark=remark(artifact.value),
            duration=_text(metadata, "duration"),
            tokens=int(_number(metadata, "tokens in") or 0) + int(_number(metadata, "tokens out") or 0),
            cost_usd=_number(metadata, "cost (USD)"),
        )

    def _runs(self) -> list[tuple[Journey, RunSeen]]:
        """Runs whose state changed. One query for all tickets."""
        changed: list[tuple[Journey, RunSeen]] = []
        for run in reversed(self._instance.get_runs(limit=_RUNS)):
            journey = self._journeys.get(run.tags.get(tags.PARTITION, ""))
            if journey is None:
                continue
            status = "active" if run.status in ACTIVE else _ENDED[run.status]
            job = run.job_name if not run.job_name.startswith("__") else "by hand"
            seen = RunSeen(run.run_id, job, status)
            if journey.runs.get(run.run_id) != seen:
                journey.runs[run.run_id] = seen
                changed.append((journey, seen))
        return changed

    async def _route(self, journey: Journey) -> None:
        """What follows, once nothing runs: the same decision that the progress sensor comes to."""
        if journey.is_running:
            journey.step = None
            return
        journey.history = await self._readers[journey.key.partition].read(with_runs=True)
        journey.step = next_step(journey.history, self._policy)


def remark(value: BaseModel) -> str:
    """What a person wants to know of an artifact besides its verdict, in a line."""
    match value:
        case Plan():
            return f"{len(value.tasks)} task{'s' * (len(value.tasks) != 1)}" + (", findings" if value.findings else "")
        case ArchitectureReview() | Review():
            return _line(value.verdict.comments[0]) if value.verdict.refused and value.verdict.comments else ""
        case DiffStat():
            return f"{value.files} files, +{value.insertions} -{value.deletions}"
        case Integration():
            return f"conflicts: {', '.join(value.conflicts)}" if value.conflicts else ""
        case PullRequest():
            return f"#{value.number} {_line(value.title)}"
        case QaReport():
            return f"{len(value.evidence)} evidence file{'s' * (len(value.evidence) != 1)}"
        case Outcome():
            return value.ending.value
        case _:
            return ""


def _line(text: str, limit: int = 90) -> str:
    words = " ".join(text.split())
    return words if len(words) <= limit else words[: limit - 3] + "..."


def _text(metadata: Mapping[str, Any], name: str) -> str:
    return str(metadata[name].value) if name in metadata else ""


def _number(metadata: Mapping[str, Any], name: str) -> float | None:
    return float(str(metadata[name].value)) if name in metadata else None
