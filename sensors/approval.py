"""Approval: watches open pull requests (and plans that wait) for human decisions, and passes on only source and id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import dagster as dg

from atelier_dagster.factory.approval import HumanDecision
from atelier_dagster.factory.change import PullRequest
from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.factory.lineage import JOBS
from atelier_dagster.factory.routing import RunStep
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.decisions import plan_approver
from atelier_dagster.orchestration.history import HistoryReader, active_runs
from atelier_dagster.orchestration.jobs import DELIVER, RELEASE, build_jobs
from atelier_dagster.orchestration.launch import order_request, release_request
from atelier_dagster.orchestration.orders import step_order
from atelier_dagster.orchestration.watch import News, materialized_since
from resources.artifacts import ArtifactsResource
from resources.forge import ForgeResource
from resources.policy import PolicyResource
from resources.tracker import TrackerResource
from sensors import _cursor

_SEEN = 50
"""Decisions remembered for each pull request."""


@dg.sensor(  # pyright: ignore[reportUnknownMemberType]
    name="approval_watch",
    jobs=build_jobs(),
    minimum_interval_seconds=3,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Starts a release for each new human decision on a pull request that waits for one.",
)
def approval_watch(
    context: dg.SensorEvaluationContext,
    forge: ForgeResource,
    tracker: TrackerResource,
    artifacts: ArtifactsResource,
    policy: PolicyResource,
) -> dg.SensorResult:
    """One request for each ticket that waits for a human; the run itself fetches and judges the decision."""
    fields = _cursor.load(context.cursor)
    watch = Watch(context, forge, tracker, artifacts, policy)
    try:
        requests = asyncio.run(watch.tick(fields))
    except AtelierError as error:  # what began to wait could not be read: the cursor stays, the next tick asks again
        return dg.SensorResult(skip_reason=str(error)[:1000], cursor=context.cursor)
    return dg.SensorResult(run_requests=requests, cursor=_cursor.dump(fields))


class Watch:
    """One tick. The cursor holds, for each waiting ticket, what it waits with and the decisions already passed on."""

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        forge: ForgeResource,
        tracker: TrackerResource,
        artifacts: ArtifactsResource,
        policy: PolicyResource,
    ) -> None:
        self._context = context
        self._forge = forge.forge()
        self._tracker = tracker.tracker()
        self._artifacts = artifacts
        self._policy = policy

    async def tick(self, fields: dict[str, Any]) -> list[dg.RunRequest]:
        """Take up tickets that began to wait since the last tick, then look at each that still waits."""
        watched: dict[str, Any] = fields.setdefault("watched", {})
        await self._take_up(fields, watched)
        requests: list[dg.RunRequest] = []
        for partition, waiting in watched.items():
            try:
                requests += await self._look(partition, waiting)
            except AtelierError as error:  # a failed read is no decision: the next tick asks again
                self._context.log.warning(f"{partition}: {error}")
        return requests

    async def _take_up(self, fields: dict[str, Any], watched: dict[str, Any]) -> None:
        assets = ["pull_request", "outcome"] + (["plan"] if self._policy.plan_review == "human" else [])
        cursor = fields.get("storage", 0)
        news, fields["storage"] = materialized_since(
            self._context.instance, assets, cursor if isinstance(cursor, int) else 0
        )
        for item in news:
            try:
                TicketKey.from_partition(item.partition)
                artifact = await self._artifacts.store().get(item.partition, item.asset, item.sha256)
            except AtelierError as error:
                if error.transient:
                    raise
                self._context.log.warning(f"{item.asset} of {item.partition} is no artifact: {error}")
                continue
            self._wait_for(item, artifact.value, watched)

    @staticmethod
    def _wait_for(item: News, value: object, watched: dict[str, Any]) -> None:
        if item.asset == "outcome":
            watched.pop(item.partition, None)
            return
        waiting = {"for": item.asset, "sha": item.sha256, "seen": watched.get(item.partition, {}).get("seen", [])}
        if isinstance(value, PullRequest):
            waiting["number"] = value.number
        watched[item.partition] = waiting

    async def _look(self, partition: str, waiting: dict[str, Any]) -> list[dg.RunRequest]:
        if waiting["for"] == "plan":
            return await self._plan(partition, waiting)
        key = TicketKey.from_partition(partition)
        decisions = await self._forge.decisions(key.repo, waiting["number"])
        mark, name = self._unseen(decisions, waiting)
        if not mark:
            return []
        if active_runs(self._context.instance, partition) or not await self._is_current(partition, waiting):
            return []
        waiting["seen"] = [*waiting["seen"], mark][-_SEEN:]
        if self._was_passed_on(partition, name, waiting["sha"]):
            return []
        return [release_request(partition, name, waiting["sha"])]

    def _unseen(self, decisions: Sequence[HumanDecision], waiting: dict[str, Any]) -> tuple[str, str]:
        """Mark and `source:id` of the decision to judge next, or "".

        Decisions come in order, and the newest supersedes the older ones; but that of somebody who may not decide
        never hides one that counts.
        """
        ours = [decision for decision in decisions if not self._is_ours(decision)]
        allowed = [d for d in ours if d.may_decide or d.actor in self._policy.approvers]
        for newest in (*allowed[-1:], *ours[-1:]):
            name = f"{newest.source.value}:{newest.id}"
            mark = f"{name}@{waiting['sha'][:16]}"
            if mark not in waiting["seen"]:
                return mark, name
        return "", ""

    def _is_ours(self, decision: HumanDecision) -> bool:
        return decision.is_bot or decision.actor == self._policy.bot

    async def _is_current(self, partition: str, waiting: dict[str, Any]) -> bool:
        history = await HistoryReader(self._context.instance, self._artifacts.store(), partition).read()
        entry = history.current(waiting["for"])
        return entry is not None and entry.sha256 == waiting["sha"] and history.current("outcome") is None

    def _was_passed_on(self, partition: str, decision: str, pull_request_sha: str) -> bool:
        """Whether the command line has started a release about this decision already."""
        wanted = {tags.PARTITION: partition, tags.DECISION: decision, tags.SUBJECT: pull_request_sha}
        return bool(self._context.instance.get_runs(dg.RunsFilter(job_name=RELEASE, tags=wanted), limit=1))

    async def _plan(self, partition: str, waiting: dict[str, Any]) -> list[dg.RunRequest]:
        mark = f"approved@{waiting['sha'][:16]}"
        if mark in waiting["seen"]:
            return []
        key = TicketKey.from_partition(partition)
        approvers = frozenset(self._policy.approvers)
        who = await plan_approver(self._tracker, key, waiting["sha"], approvers, self._policy.bot)
        if not who:
            return []
        if active_runs(self._context.instance, partition) or not await self._is_current(partition, waiting):
            return []
        waiting["seen"] = [*waiting["seen"], mark][-_SEEN:]
        assets = JOBS[DELIVER][JOBS[DELIVER].index("approved_plan") :]
        step = RunStep(job=DELIVER, assets=assets, reason=f"the plan was approved by {who}")
        return [order_request(step_order(step, partition), f"plan:{partition}:{waiting['sha']}")]
