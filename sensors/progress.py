"""Progress: after each ended run, of whatever job and state, the ticket moves on as routing says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import dagster as dg

from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.factory.routing import RunStep, WaitStep, next_step
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.history import HistoryReader, active_runs
from atelier_dagster.orchestration.jobs import build_jobs
from atelier_dagster.orchestration.launch import follow_request
from atelier_dagster.orchestration.news import tell_failure, tell_waiting
from resources.artifacts import ArtifactsResource
from resources.policy import PolicyResource
from resources.tracker import TrackerResource
from sensors import _cursor

_ENDS = (
    dg.DagsterEventType.RUN_SUCCESS,
    dg.DagsterEventType.RUN_FAILURE,
    dg.DagsterEventType.RUN_CANCELED,
)
_PER_TICK = 100
"""Ended runs of each state that one tick takes up."""


@dg.sensor(  # pyright: ignore[reportUnknownMemberType]
    name="progress",
    jobs=build_jobs(),
    minimum_interval_seconds=3,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Starts what follows after each ended run; after a failure with a back-off, and not for ever.",
)
def progress(
    context: dg.SensorEvaluationContext,
    artifacts: ArtifactsResource,
    policy: PolicyResource,
    tracker: TrackerResource,
) -> dg.SensorResult:
    """Many ended runs in one tick, and nothing but a look at the cursor when none ended."""
    fields = _cursor.load(context.cursor)
    ended = _ended_since(context, fields)
    waiting: dict[str, Any] = fields.setdefault("waiting", {})
    for run in ended:
        partition = run.tags[tags.PARTITION]
        waiting[partition] = {"run": run.run_id, "due": 0.0}
    requests = asyncio.run(_requests(context, artifacts, policy, tracker, waiting, ended))
    return dg.SensorResult(run_requests=requests, cursor=_cursor.dump(fields))


def _ended_since(context: dg.SensorEvaluationContext, fields: dict[str, Any]) -> list[dg.DagsterRun]:
    """Ended runs of tickets since the cursor, which is moved on."""
    run_ids: list[str] = []
    for kind in _ENDS:
        page = context.instance.fetch_run_status_changes(
            kind, limit=_PER_TICK, cursor=fields.get(kind.value), ascending=True
        )
        if page.records:
            fields[kind.value] = page.cursor
        run_ids += [record.run_id for record in page.records]
    records = context.instance.get_run_records(dg.RunsFilter(run_ids=run_ids)) if run_ids else ()
    ended = sorted(records, key=lambda record: record.end_time or 0.0)  # the last one of a ticket is what counts
    return [record.dagster_run for record in ended if tags.PARTITION in record.dagster_run.tags]


async def _requests(
    context: dg.SensorEvaluationContext,
    artifacts: ArtifactsResource,
    policy: PolicyResource,
    tracker: TrackerResource,
    waiting: dict[str, Any],
    ended: Sequence[dg.DagsterRun],
) -> list[dg.RunRequest]:
    requests: list[dg.RunRequest] = []
    for run in ended:
        if run.status is dg.DagsterRunStatus.FAILURE:
            await tell_failure(context.instance, tracker.tracker(), run, context.log)
    for partition, entry in list(waiting.items()):
        if entry["due"] > time.time():
            continue
        if active_runs(context.instance, partition):
            del waiting[partition]  # the end of that run brings us back
            continue
        request = await _follow(context, artifacts, policy, tracker, partition, entry)
        if request is None and entry["due"] > time.time():
            continue
        del waiting[partition]
        requests += [request] if request else []
    return requests


async def _follow(
    context: dg.SensorEvaluationContext,
    artifacts: ArtifactsResource,
    policy: PolicyResource,
    tracker: TrackerResource,
    partition: str,
    entry: dict[str, Any],
) -> dg.RunRequest | None:
    """The run that follows now, if any; a step with a delay only sets `due`."""
    try:
        history = await HistoryReader(context.instance, artifacts.store(), partition).read(with_runs=True)
    except AtelierError as error:
        context.log.error(f"{partition}: its history cannot be read: {error}")
        entry["due"] = time.time() + 60.0
        return None
    step = next_step(history, policy.policy())
    if isinstance(step, WaitStep):
        await tell_waiting(tracker.tracker(), partition, step, context.log)
    if not isinstance(step, RunStep):
        return None
    if step.delay_seconds and not entry["due"]:
        entry["due"] = time.time() + step.delay_seconds
        return None
    request = follow_request(context.instance, step, partition, entry["run"])
    if request is None:
        context.log.warning(f"{partition}: {step.reason}, but no decision is known; a human decides again")
    return request
