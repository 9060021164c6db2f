"""Intake: labelled tickets become partitions and start; closed or unlabelled ones stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import dagster as dg

from atelier_dagster.delivery.tell import tell
from atelier_dagster.factory.change import Ending
from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.factory.messages import author_not_allowed
from atelier_dagster.factory.routing import RunStep
from atelier_dagster.factory.ticket import RepoRef, TicketKey
from atelier_dagster.orchestration import partitions, tags
from atelier_dagster.orchestration.by_hand import order_for, step_by_hand
from atelier_dagster.orchestration.decisions import retry_asked
from atelier_dagster.orchestration.history import HistoryReader, active_runs, newest_run
from atelier_dagster.orchestration.intake import Change, Known, intake_change
from atelier_dagster.orchestration.jobs import CLOSE, build_jobs
from atelier_dagster.orchestration.launch import deliver_request, last_decision, order_request, repeated_tags
from atelier_dagster.orchestration.orders import close_order
from atelier_dagster.ports import Comment, Issue, Tracker
from resources.artifacts import ArtifactsResource
from resources.policy import PolicyResource
from resources.tracker import TrackerResource
from sensors import _cursor

_ASKED = "asked"
_RESOLUTION = 2.0
"""Seconds by which a tracker's time of a comment may be too early: some tell whole seconds only."""


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
) -> dg.SensorResult:
    """One cheap request per repository; work in proportion to what changed since the last tick."""
    return asyncio.run(_tick(context, tracker.tracker(), artifacts, policy))


async def _tick(
    context: dg.SensorEvaluationContext, tracker: Tracker, artifacts: ArtifactsResource, policy: PolicyResource
) -> dg.SensorResult:
    tick = Tick(context, tracker, artifacts, policy)
    requests, problems = await tick.run()
    for problem in problems:
        context.log.warning(problem)
    skipped = "; ".join(problems)[:1000] if problems and not requests else None
    return dg.SensorResult(run_requests=requests, skip_reason=skipped, cursor=_cursor.dump(tick.cursors))


class Tick:
    """One tick. The cursor holds the tracker's own cursor of each repository, and the retries that wait for a run."""

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        tracker: Tracker,
        artifacts: ArtifactsResource,
        policy: PolicyResource,
    ) -> None:
        self._context = context
        self._instance = context.instance
        self._tracker = tracker
        self._artifacts = artifacts
        self._policy = policy
        self.cursors = _cursor.load(context.cursor)
        self._problems: list[str] = []

    async def run(self) -> tuple[list[dg.RunRequest], list[str]]:
        """The runs to start, and what could not be read. A failed read is no empty answer: its cursor stays."""
        requests: list[dg.RunRequest] = []
        for partition, asked in list(self._asked.items()):
            answer = await self._guarded(partition, self._retry(TicketKey.from_partition(partition)))
            if answer is None:
                self._asked[partition] = asked
            requests += answer or []
        try:
            repositories = await self._tracker.repositories()
        except AtelierError as error:
            return requests, [*self._problems, f"repositories: {error}"]
        for repo in repositories:
            requests += await self._guarded(str(repo), self._repository(repo)) or []
        return requests, self._problems

    @property
    def _asked(self) -> dict[str, str]:
        """Tickets with a retry that could not be answered because a run was active."""
        return self.cursors.setdefault(_ASKED, {})

    async def _guarded(self, what: str, work: Awaitable[list[dg.RunRequest]]) -> list[dg.RunRequest] | None:
        """The requests of `work`; None when it failed for now, so that it must be tried again."""
        try:
            return await work
        except AtelierError as error:
            self._problems.append(f"{what}: {error}")
            return None if error.transient else []

    async def _repository(self, repo: RepoRef) -> list[dg.RunRequest]:
        issues, cursor = await self._tracker.issues_changed_since(repo, self.cursors.get(str(repo), ""))
        answers = [await self._guarded(str(issue.key), self._react(issue)) for issue in issues]
        if None not in answers:  # what is read again is answered the same way: run keys see to that
            self.cursors[str(repo)] = cursor
        return [request for answer in answers for request in answer or ()]

    async def _react(self, issue: Issue) -> list[dg.RunRequest]:
        partition, policy = issue.key.partition, self._policy
        known = await self._known(partition)
        change = intake_change(issue, known, label=policy.label, authors=frozenset(policy.authors))
        if change is Change.START:
            partitions.add_tickets(self._instance, [partition])
            return [deliver_request(partition, known.cycle + 1, "the ticket has the label")]
        if change is Change.REFUSE:
            await tell(self._tracker, issue.key, "intake", author_not_allowed(issue.author))
        if change is Change.NOTHING and known.cycle:
            return await self._retry(issue.key)
        if change is Change.STOP and not any(r.job_name == CLOSE for r in active_runs(self._instance, partition)):
            reason = "the ticket was closed" if not issue.is_open else f"the ticket lost its label {policy.label}"
            order = close_order(partition, Ending.CANCELLED.value, reason)
            return [order_request(order, f"stop:{partition}:{known.cycle}:{issue.updated_at.isoformat()}")]
        return []

    async def _known(self, partition: str) -> Known:
        if not partitions.is_known(self._instance, partition):
            return Known()
        reader = HistoryReader(self._instance, self._artifacts.store(), partition)
        history = await reader.read(("ticket", "outcome"))
        if not history.cycle and newest_run(self._instance, partition) is None:
            return Known()  # a partition that was made and never got its run has not been started
        outcome = history.current("outcome")
        return Known(cycle=max(history.cycle, 1), ending=outcome.artifact.value.ending if outcome else None)

    async def _retry(self, key: TicketKey) -> list[dg.RunRequest]:
        """The run that the newest `/atelier retry` asks for, once; while a run is active, it waits for its end."""
        partition, policy = key.partition, self._policy
        asked = await retry_asked(self._tracker, key, frozenset(policy.approvers), policy.bot)
        self._asked.pop(partition, None)
        if asked is None or self._is_answered(partition, asked):
            return []
        if active_runs(self._instance, partition):
            self._asked[partition] = asked.id
            return []
        reader = HistoryReader(self._instance, self._artifacts.store(), partition)
        history = await reader.read(with_runs=True)
        ended = history.current("outcome")
        if ended is not None and _moment(asked) < ended.seq / 1e6:
            return []  # it spoke of the cycle that has ended since
        step = step_by_hand(history, policy.policy())
        extra = repeated_tags(self._instance, step) if isinstance(step, RunStep) else {}
        order = order_for(step, history, last_decision(self._instance, partition), extra)
        if order is None:
            self._context.log.info(f"{key}: a retry was asked, but only a decision about its pull request helps")
            return []
        return [order_request(order, f"retry:{partition}:{asked.id}", {tags.RETRY: asked.id})]

    def _is_answered(self, partition: str, asked: Comment) -> bool:
        """Whether the ticket has gone on since: a retry speaks of what its author saw, not of what came later."""
        newest = newest_run(self._instance, partition)
        return newest is not None and _moment(asked) + _RESOLUTION < newest.create_timestamp.timestamp()


def _moment(comment: Comment) -> float:
    return comment.created_at.timestamp()
