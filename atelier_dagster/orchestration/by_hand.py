"""Which run a ticket gets when a person says that it goes on: `atelier submit`, or `/atelier retry`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from atelier_dagster.factory.budgets import Policy
from atelier_dagster.factory.lineage import History
from atelier_dagster.factory.routing import (
    DoneStep,
    RunStep,
    Step,
    WaitKind,
    WaitStep,
    delivery_from,
    missing,
    next_step,
)
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.orders import RunOrder, deliver_order, step_order

BY_HAND = "submitted by hand"
_STOPPED_BY_RUNS = {WaitKind.CANCELLED, WaitKind.FAILURES, WaitKind.BUDGET, WaitKind.NOTHING_CHANGED}
"""Waits that the last runs are the reason for: a person who submits has seen them."""
_DECISIONS = {WaitKind.APPROVAL, WaitKind.DECISION_REFUSED}


def step_by_hand(history: History, policy: Policy) -> Step:
    """What follows when neither back-off nor the count of failures holds the ticket. Pure."""
    step = next_step(history, policy.model_copy(update={"max_failures": 1_000_000, "backoff_seconds": ()}))
    if not isinstance(step, WaitStep) or step.kind not in _STOPPED_BY_RUNS:
        return step
    if step.kind is WaitKind.NOTHING_CHANGED:
        return RunStep(job="deliver", assets=delivery_from("workshops"), reason=BY_HAND)
    return next_step(history.model_copy(update={"runs": ()}), policy)


def order_for(step: Step, history: History, decision: str, extra: Mapping[str, str] | None = None) -> RunOrder | None:
    """The order that a step becomes when a person asks for it. Pure."""
    partition = history.ticket
    match step:
        case DoneStep():
            return deliver_order(partition, history.cycle + 1, f"{BY_HAND}: the next cycle", by_hand=True)
        case RunStep():
            if "approval" in step.assets and not decision:
                return None
            return step_order(step, partition, decision=decision, extra={**_marks(step, history), **(extra or {})})
        case WaitStep(kind=WaitKind.NOT_STARTED):
            return deliver_order(partition, 1, BY_HAND, by_hand=True)
        case WaitStep(kind=WaitKind.MERGE_REFUSED):
            again = RunStep(job="release", assets=("merge", "knowledge", "qa_report"), reason=f"{BY_HAND}: merge again")
            return step_order(again, partition)
        case WaitStep() if step.kind in _DECISIONS:
            return None
        case WaitStep():
            rest = RunStep(job="deliver", assets=missing(history, "deliver"), reason=BY_HAND)
            return step_order(rest, partition) if rest.assets else None


def _marks(step: RunStep, history: History) -> dict[str, str]:
    """What a run is told besides its assets: the cycle of a ticket read again, the pull request decided about."""
    marks = {tags.CYCLE: str(history.cycle)} if "ticket" in step.assets and history.cycle else {}
    pull_request = history.current("pull_request")
    if "approval" in step.assets and pull_request:
        marks[tags.SUBJECT] = pull_request.sha256
    return marks
