"""Intake: labelled tickets become partitions and start; closed or unlabelled ones stop."""

from __future__ import annotations

import asyncio

import dagster as dg

from atelier_dagster.delivery.tell import tell
from atelier_dagster.factory.change import Ending
from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.factory.messages import author_not_allowed
from atelier_dagster.factory.routing import RunStep
from atelier_dagster.orchestration import partitions, tags
from atelier_dagster.orchestration.by_hand import order_for, step_by_hand
from atelier_dagster.orchestration.decisions import retry_asked
from atelier_dagster.orchestration.history import HistoryReader, active_runs
from atelier_dagster.orchestration.intake import Change, Known, intake_change
from atelier_dagster.orchestration.jobs import CLOSE, build_jobs
from atelier_dagster.orchestration.launch import deliver_request, last_decision, order_request, repeated_tags
from atelier_dagster.orchestration.orders import close_order
from atelier_dagster.ports import Issue, Tracker
from resources.artifacts import ArtifactsResource
from resources.policy import PolicyResource
from resources.tracker import TrackerResource
from sensors import _cursor


@dg.sensor(  # pyright: ignore[reportUnknownMemberType]
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
    if change is Change.NOTHING and known.cycle:
        return await _retry(context, tracker, artifacts, policy, issue)
    if change is Change.STOP and not any(r.job_name == CLOSE for r in active_runs(context.instance, partition)):
        reason = "the ticket was closed" if not issue.is_open else f"the ticket lost its label {policy.label}"
        order = close_order(partition, Ending.CANCELLED.value, reason)
        return [order_request(order, f"stop:{partition}:{known.cycle}:{issue.updated_at.isoformat()}")]
    return []


async def _retry(
    context: dg.SensorEvaluationContext,
    tracker: Tracker,
    artifacts: ArtifactsResource,
    policy: PolicyResource,
    issue: Issue,
) -> list[dg.RunRequest]:
    """The run that a `/atelier retry` asks for; the newest one counts, once."""
    partition = issue.key.partition
    asked = await retry_asked(tracker, issue.key, frozenset(policy.approvers), policy.bot)
    if not asked or active_runs(context.instance, partition):
        return []
    history = await HistoryReader(context.instance, artifacts.store(), partition).read(with_runs=True)
    step = step_by_hand(history, policy.policy())
    extra = repeated_tags(context.instance, step) if isinstance(step, RunStep) else {}
    order = order_for(step, history, last_decision(context.instance, partition), extra)
    if order is None:
        context.log.info(f"{issue.key}: a retry was asked, but only a decision about its pull request helps")
    return [order_request(order, f"retry:{partition}:{asked}", {tags.RETRY: asked})] if order else []


async def _known(context: dg.SensorEvaluationContext, artifacts: ArtifactsResource, partition: str) -> Known:
    if not partitions.is_known(context.instance, partition):
        return Known()
    history = await HistoryReader(context.instance, artifacts.store(), partition).read(("ticket", "outcome"))
    outcome = history.current("outcome")
    return Known(cycle=max(history.cycle, 1), ending=outcome.artifact.value.ending if outcome else None)
