"""Approval: watches open pull requests (and plans that wait) for human decisions, and passes on only source and id."""

from __future__ import annotations

import asyncio
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
    requests = asyncio.run(watch.tick(fields))
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
        await self._take_up(fields.setdefault("storage", {}), watched)
        requests: list[dg.RunRequest] = []
        for partition, waiting in watched.items():
            try:
                requests += await self._look(partition, waiting)
            except AtelierError as error:  # a failed read is no decision: the next tick asks again
                self._context.log.warning(f"{partition}: {error}")
        return requests

    async def _take_up(self, storage: dict[str, Any], watched: dict[str, Any]) -> None:
        assets = ["pull_request", "outcome"] + (["plan"] if self._policy.plan_review == "human" else [])
        for asset in assets:
            for news in materialized_since(self._context.instance, asset, storage):
                if asset == "outcome":
                    watched.pop(news.partition, None)
                else:
                    await self._wait_for(news, watched)

    async def _wait_for(self, news: News, watched: dict[str, Any]) -> None:
        store, seen = self._artifacts.store(), watched.get(news.partition, {}).get("seen", [])
        waiting = {"for": news.asset, "sha": news.sha256, "seen": seen}
        if news.asset == "pull_request":
            artifact = await store.get(news.partition, news.asset, news.sha256)
            assert isinstance(artifact.value, PullRequest)
            waiting["number"] = artifact.value.number
        watched[news.partition] = waiting

    async def _look(self, partition: str, waiting: dict[str, Any]) -> list[dg.RunRequest]:
        if waiting["for"] == "plan":
            return await self._plan(partition, waiting)
        key = TicketKey.from_partition(partition)
        decisions = await self._forge.decisions(key.repo, waiting["number"])
        newest = next((d for d in reversed(decisions) if not self._is_ours(d)), None)
        if newest is None:
            return []
        name = f"{newest.source.value}:{newest.id}"
        mark = f"{name}@{waiting['sha'][:16]}"
        if mark in waiting["seen"]:
            return []  # decisions come in order: everything older has been superseded
        if active_runs(self._context.instance, partition) or not await self._is_current(partition, waiting):
            return []
        waiting["seen"] = [*waiting["seen"], mark][-_SEEN:]
        if self._was_passed_on(partition, name, waiting["sha"]):
            return []
        return [release_request(partition, name, waiting["sha"])]

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
        key = TicketKey.from_partition(partition)
        approvers = frozenset(self._policy.approvers)
        who = await plan_approver(self._tracker, key, waiting["sha"], approvers, self._policy.bot)
        if not who or "approved" in waiting["seen"]:
            return []
        if active_runs(self._context.instance, partition) or not await self._is_current(partition, waiting):
            return []
        waiting["seen"] = [*waiting["seen"], "approved"]
        assets = JOBS[DELIVER][JOBS[DELIVER].index("approved_plan") :]
        step = RunStep(job=DELIVER, assets=assets, reason=f"the plan was approved by {who}")
        return [order_request(step_order(step, partition), f"plan:{partition}:{waiting['sha']}")]
