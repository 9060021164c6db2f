"""Runs that a person or another process orders by hand, as plain data that needs no Dagster. Not here: sending them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atelier_dagster.factory.lineage import JOBS
from atelier_dagster.factory.routing import RunStep
from atelier_dagster.orchestration import tags


@dataclass(frozen=True)
class RunOrder:
    """One run of a ticket's job: its assets, what it is told, and why."""

    partition: str
    job: str
    assets: tuple[str, ...]
    run_config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


def deliver_order(partition: str, cycle: int, reason: str, *, by_hand: bool = False) -> RunOrder:
    """The first run of a cycle. `by_hand`: somebody wants it even if the ticket is closed or has no label."""
    marks = {tags.REASON: reason[:200], tags.CYCLE: str(cycle), **({tags.BY_HAND: "yes"} if by_hand else {})}
    return RunOrder(partition, "deliver", JOBS["deliver"], tags=marks)


def release_order(partition: str, source: str, decision_id: str, pull_request_sha: str) -> RunOrder:
    """The run that judges one human decision. It is told where the decision is, never what it says."""
    decision = f"{source}:{decision_id}"
    marks = {tags.REASON: f"decision {decision}", tags.DECISION: decision, tags.SUBJECT: pull_request_sha}
    return RunOrder(partition, "release", JOBS["release"], decision_config(decision), marks)


def close_order(partition: str, ending: str, reason: str) -> RunOrder:
    """The run that ends a cycle for a reason that lies outside it."""
    return RunOrder(partition, "close", JOBS["close"], tags={tags.REASON: reason[:200], tags.ENDING: ending})


def step_order(
    step: RunStep, partition: str, *, decision: str = "", extra: Mapping[str, str] | None = None
) -> RunOrder:
    """The run that routing asks for. `decision` is `source:id`, needed when `approval` is among the assets."""
    marks = {tags.REASON: step.reason[:200], **({tags.DECISION: decision} if decision else {}), **(extra or {})}
    config = decision_config(decision) if "approval" in step.assets else {}
    return RunOrder(partition, step.job, step.assets, config, marks)


def decision_config(decision: str) -> dict[str, Any]:
    """Run configuration of a run that includes `approval`, from `source:id`."""
    source, _, decision_id = decision.partition(":")
    return {"ops": {"approval": {"config": {"source": source, "id": decision_id}}}}
