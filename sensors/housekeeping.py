"""Housekeeping: runs whose process is gone, workshops that nobody needs, tickets that were left standing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.factory.routing import RunStep, next_step
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.orchestration import partitions
from atelier_dagster.orchestration.history import HistoryReader, active_runs
from atelier_dagster.orchestration.jobs import build_jobs
from atelier_dagster.orchestration.launch import follow_request
from atelier_dagster.orchestration.lost_runs import fail_lost_runs
from atelier_dagster.ports import Workshops, WorkshopStatus
from resources.artifacts import ArtifactsResource
from resources.policy import PolicyResource
from resources.workshops import WorkshopsResource
from sensors import _cursor

_TICKETS_PER_TICK = 25


@dg.sensor(  # pyright: ignore[reportUnknownMemberType]
    name="housekeeping",
    jobs=build_jobs(),
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Fails runs whose process is gone, removes orphaned workshops, moves on tickets that stand still.",
)
def housekeeping(
    context: dg.SensorEvaluationContext,
    workshops: WorkshopsResource,
    artifacts: ArtifactsResource,
    policy: PolicyResource,
) -> dg.SensorResult:
    """A bounded part of the tickets in each tick, in rotation."""
    lost = fail_lost_runs(context.instance)
    for run_id in lost:
        context.log.warning(f"run {run_id} had no process any more and was failed")
    fields = _cursor.load(context.cursor)
    requests = asyncio.run(_tick(context, workshops.workshops(), artifacts, policy, fields))
    return dg.SensorResult(run_requests=requests, cursor=_cursor.dump(fields))


async def _tick(
    context: dg.SensorEvaluationContext,
    workshops: Workshops,
    artifacts: ArtifactsResource,
    policy: PolicyResource,
    fields: dict[str, int],
) -> list[dg.RunRequest]:
    try:
        await _remove_orphans(context, workshops, artifacts, policy)
    except AtelierError as error:
        context.log.warning(f"workshops could not be looked at: {error}")
    known = list(context.instance.get_dynamic_partitions(partitions.TICKETS))
    start = int(fields.get("position", 0))
    if start >= len(known):
        start = 0
    chosen = known[start : start + _TICKETS_PER_TICK]
    fields["position"] = start + len(chosen)
    requests: list[dg.RunRequest] = []
    for partition in chosen:
        request = await _unstick(context, artifacts, policy, partition)
        requests += [request] if request else []
    return requests


async def _unstick(
    context: dg.SensorEvaluationContext, artifacts: ArtifactsResource, policy: PolicyResource, partition: str
) -> dg.RunRequest | None:
    """The run that a ticket should have had: nothing runs, nobody is waited for, and its last run ended long ago."""
    if active_runs(context.instance, partition):
        return None
    try:
        history = await HistoryReader(context.instance, artifacts.store(), partition).read(with_runs=True)
    except AtelierError as error:
        context.log.error(f"{partition}: its history cannot be read: {error}")
        return None
    step = next_step(history, policy.policy())
    last = history.runs[-1] if history.runs else None
    if not isinstance(step, RunStep) or last is None:
        return None
    if time.time() - last.seq / 1e6 < max(120.0, step.delay_seconds * 2):
        return None  # the progress sensor is about to
    request = follow_request(context.instance, step, partition, last.run_id)
    if request is not None:
        context.log.info(f"{partition} stood still: {step.reason}")
    return request


async def _remove_orphans(
    context: dg.SensorEvaluationContext, workshops: Workshops, artifacts: ArtifactsResource, policy: PolicyResource
) -> None:
    """Delete workshops of unknown tickets, and of ended ones whose time is over."""
    oldest = datetime.now(UTC) - timedelta(hours=policy.workshop_ttl_hours)
    for partition, found in _by_ticket(await workshops.list()).items():
        old = [workshop for workshop in found if workshop.created_at is not None and workshop.created_at < oldest]
        try:
            if old and not await _is_needed(context, artifacts, partition):
                await _remove(context, workshops, old)
        except AtelierError as error:  # one ticket that cannot be looked at must not keep those of the others
            context.log.warning(f"workshops of {partition or 'no ticket'} stay: {error}")


async def _remove(context: dg.SensorEvaluationContext, workshops: Workshops, found: Sequence[WorkshopStatus]) -> None:
    for workshop in found:
        await workshops.delete(workshop.name)
        context.log.info(f"removed workshop {workshop.name}: nobody needs it any more")


def _by_ticket(found: Sequence[WorkshopStatus]) -> dict[str, list[WorkshopStatus]]:
    grouped: dict[str, list[WorkshopStatus]] = {}
    for workshop in found:
        grouped.setdefault(workshop.ticket, []).append(workshop)
    return grouped


async def _is_needed(context: dg.SensorEvaluationContext, artifacts: ArtifactsResource, partition: str) -> bool:
    """Whether the ticket is known and has not ended."""
    try:
        TicketKey.from_partition(partition)
    except AtelierError:  # made by no ticket of ours
        return False
    if not partitions.is_known(context.instance, partition):
        return False
    history = await HistoryReader(context.instance, artifacts.store(), partition).read(("ticket", "outcome"))
    return history.current("outcome") is None
