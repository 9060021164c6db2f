"""From a run order to Dagster's run request, and what earlier runs were told. Not here: deciding what to run."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from atelier_dagster.factory.routing import RunStep
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.jobs import RELEASE
from atelier_dagster.orchestration.orders import RunOrder, deliver_order, release_order, step_order


def order_request(order: RunOrder, run_key: str, extra: Mapping[str, str] | None = None) -> dg.RunRequest:
    """A run order as sensors ask for it. The same `run_key` is launched once, for ever."""
    return dg.RunRequest(
        run_key=run_key,
        job_name=order.job,
        partition_key=order.partition,
        asset_selection=[dg.AssetKey(asset) for asset in order.assets],
        run_config=order.run_config,
        tags={**order.tags, **(extra or {})},
    )


def deliver_request(partition: str, cycle: int, reason: str) -> dg.RunRequest:
    """The first run of a cycle. The same cycle is never started twice: its run key names it."""
    return order_request(deliver_order(partition, cycle, reason), f"start:{partition}:{cycle}")


def release_request(partition: str, decision: str, pull_request_sha: str) -> dg.RunRequest:
    """The run that judges a human decision (`source:id`) about the pull request as it is now."""
    source, _, decision_id = decision.partition(":")
    order = release_order(partition, source, decision_id, pull_request_sha)
    return order_request(order, f"decide:{partition}:{decision}:{pull_request_sha}")


def last_decision(instance: dg.DagsterInstance, partition: str) -> str:
    """`source:id` of the decision that the ticket's newest release run was about, or ""."""
    runs = instance.get_runs(dg.RunsFilter(job_name=RELEASE, tags={tags.PARTITION: partition}), limit=20)
    return next((run.tags[tags.DECISION] for run in runs if tags.DECISION in run.tags), "")


def follow_request(instance: dg.DagsterInstance, step: RunStep, partition: str, ended_run: str) -> dg.RunRequest | None:
    """The run that follows an ended one, told again what a repeated run was told. None: only a human can decide anew.

    The ended run is its key, so that whoever asks for it twice gets one run.
    """
    decision = last_decision(instance, partition) if "approval" in step.assets else ""
    if "approval" in step.assets and not decision:
        return None
    extra = {tags.AFTER: ended_run, **repeated_tags(instance, step)}
    return order_request(step_order(step, partition, decision=decision, extra=extra), ended_run)


def repeated_tags(instance: dg.DagsterInstance, step: RunStep) -> dict[str, str]:
    """What the run that is repeated was told by tags: the cycle to start, the ending to record."""
    run = instance.get_run_by_id(step.repeats) if step.repeats else None
    if run is None:
        return {}
    return {name: run.tags[name] for name in (tags.CYCLE, tags.ENDING) if name in run.tags}
