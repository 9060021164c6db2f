"""Intake: labelled tickets become partitions and start; closed or unlabelled ones stop."""

from __future__ import annotations

import asyncio

import dagster as dg
from atelier_dagster.factory.messages import author_not_allowed

from atelier_dagster.delivery.tell import tell
from atelier_dagster.factory.change import Ending
from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.orchestration import partitions
from atelier_dagster.orchestration.history import HistoryReader, active_runs
from atelier_dagster.orchestration.intake import Change, Known, intake_change
from atelier_dagster.orchestration.jobs import CLOSE, build_jobs
from atelier_dagster.orchestration.launch import close_request, deliver_request
from atelier_dagster.ports import Issue, Tracker
from resources.artifacts import ArtifactsResource
from resources.policy import PolicyResource
from resources.tracker import TrackerResource
from sensors import _cursor


@dg.sensor(
    name="intake",
    jobs=build_jobs(),
    minimum_interval_seconds=3,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Takes tickets with the configured label in, and stops those that lost it or were closed.",
)
def intake(
    context: dg.SensorEvaluationContext,
    tracker: TrackerResource,
    artifacts: ArtifactsResource,
    policy: PolicyResource,
) -> dg.SensorResult | dg.SkipReason:
    """One cheap request per repository; work in proportion to what changed since the last tick."""
    return asyncio.run(_tick(context, tracker.tracker(), artifacts, policy))


async def _tick(
    context: dg.SensorEvaluationContext, tracker: Tracker, artifacts: ArtifactsResource, policy: PolicyResource
) -> dg.SensorResult | dg.SkipReason:
    cursors = _cursor.load(context.cursor)
    requests: list[dg.RunRequest] = []
    problems: list[str] = []
    for repo in await tracker.repositories():
        try:
            issues, cursors[str(repo)] = await tracker.issues_changed_since(repo, cursors.get(str(repo), ""))
            for issue in issues:
                requests += await _react(context, tracker, artifacts, policy, issue)
        except AtelierError as error:  # a failed read is no empty answer: the cursor stays, the next tick asks again
            problems.append(f"{repo}: {error}")
    for problem in problems:
        context.log.warning(problem)
    if problems and not requests:
        return dg.SensorResult(skip_reason="; ".join(problems)[:1000], cursor=_cursor.dump(cursors))
    return dg.SensorResult(run_requests=requests, cursor=_cursor.dump(cursors))


async def _react(
    context: dg.SensorEvaluationContext,
    tracker: Tracker,
    artifacts: ArtifactsResource,
    policy: PolicyResource,
    issue: Issue,
) -> list[dg.RunRequest]:
    partition = issue.key.partition
    known = await _known(context, artifacts, partition)
    change = intake_change(issue, known, label=policy.label, authors=frozenset(policy.authors))
    if change is Change.START:
        partitions.add_tickets(context.instance, [partition])
        return [deliver_request(partition, known.cycle + 1, "the ticket has the label")]
    if change is Change.REFUSE:
        await tell(tracker, issue.key, "intake", author_not_allowed(issue.author))
    if change is Change.STOP and not any(r.job_name == CLOSE for r in active_runs(context.instance, partition)):
        reason = "the ticket was closed" if not issue.is_open else f"the ticket lost its label {policy.label}"
        return [close_request(partition, known.cycle, Ending.CANCELLED.value, reason, f"stop:{partition}")]
    return []


async def _known(context: dg.SensorEvaluationContext, artifacts: ArtifactsResource, partition: str) -> Known:
    if not partitions.is_known(context.instance, partition):
        return Known()
    history = await HistoryReader(context.instance, artifacts.store(), partition).read(("ticket", "outcome"))
    outcome = history.current("outcome")
    return Known(cycle=max(history.cycle, 1), ending=outcome.artifact.value.ending if outcome else None)
