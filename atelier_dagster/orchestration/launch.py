"""From a routing step to a run request: job, assets, configuration, tags. Not here: deciding, or asking for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from atelier_dagster.factory.lineage import JOBS
from atelier_dagster.factory.routing import RunStep
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.jobs import CLOSE, DELIVER, RELEASE


def decision_config(source: str, decision_id: str) -> dict[str, Any]:
    """Run configuration of a release: where the decision was made. It has no default, so none is ever assumed."""
    return {"ops": {"approval": {"config": {"source": source, "id": decision_id}}}}


def run_request(
    step: RunStep, partition: str, run_key: str, *, extra: Mapping[str, str] | None = None, decision: str = ""
) -> dg.RunRequest:
    """The run that a step asks for. `decision` is `source:id`, needed when `approval` is among the assets."""
    source, _, decision_id = decision.partition(":")
    return dg.RunRequest(
        run_key=run_key,
        job_name=step.job,
        partition_key=partition,
        asset_selection=[dg.AssetKey(asset) for asset in step.assets],
        run_config=decision_config(source, decision_id) if "approval" in step.assets else {},
        tags={tags.REASON: step.reason[:200], **({tags.DECISION: decision} if decision else {}), **(extra or {})},
    )


def deliver_request(partition: str, cycle: int, reason: str) -> dg.RunRequest:
    """The first run of a cycle. The same cycle is never started twice: its run key names it."""
    step = RunStep(job=DELIVER, assets=JOBS[DELIVER], reason=reason)
    return run_request(step, partition, f"start:{partition}:{cycle}", extra={tags.CYCLE: str(cycle)})


def release_request(partition: str, decision: str, pull_request_sha: str) -> dg.RunRequest:
    """The run that judges a human decision about the pull request as it is now."""
    step = RunStep(job=RELEASE, assets=JOBS[RELEASE], reason=f"decision {decision}")
    run_key = f"decide:{partition}:{decision}:{pull_request_sha}"
    return run_request(step, partition, run_key, extra={tags.SUBJECT: pull_request_sha}, decision=decision)


def close_request(partition: str, cycle: int, ending: str, reason: str, run_key: str) -> dg.RunRequest:
    """The run that ends a cycle for a reason that lies outside it."""
    step = RunStep(job=CLOSE, assets=JOBS[CLOSE], reason=reason)
    return run_request(step, partition, f"{run_key}:{cycle}", extra={tags.ENDING: ending})


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
    return run_request(step, partition, ended_run, extra=extra, decision=decision)


def repeated_tags(instance: dg.DagsterInstance, step: RunStep) -> dict[str, str]:
    """What the run that is repeated was told by tags: the cycle to start, the ending to record."""
    run = instance.get_run_by_id(step.repeats) if step.repeats else None
    if run is None:
        return {}
    return {name: run.tags[name] for name in (tags.CYCLE, tags.ENDING) if name in run.tags}
