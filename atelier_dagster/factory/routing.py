"""Every route that a ticket can take: what follows, from its recorded history alone. Not here: launching runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from atelier_dagster.factory.approval import Action, Approval
from atelier_dagster.factory.budgets import REVIEWS, Policy, why_not_updated
from atelier_dagster.factory.change import Ending, Merge, Outcome, PullRequest, RefusalKind
from atelier_dagster.factory.errors import ModelBudgetExceeded, NothingChanged
from atelier_dagster.factory.gates import GateRuling, architecture_gate, review_gate_ruling, tests_gate
from atelier_dagster.factory.lineage import JOBS, EndedRun, History
from atelier_dagster.factory.starts import BuildingStart, PlanningStart, building_start, planning_start
from atelier_dagster.factory.ticket import Frozen

__all__ = [
    "BuildingStart",
    "DoneStep",
    "GateRuling",
    "PlanningStart",
    "Policy",
    "RunStep",
    "Step",
    "WaitKind",
    "WaitStep",
    "architecture_gate",
    "building_start",
    "delivery_from",
    "missing",
    "next_step",
    "planning_start",
    "resume_step",
    "review_gate_ruling",
    "tests_gate",
]

JobName = Literal["deliver", "release", "close"]


class RunStep(Frozen):
    """Launch `assets` of `job`, after `delay_seconds`."""

    step: Literal["run"] = "run"
    job: JobName
    assets: tuple[str, ...]
    reason: str
    delay_seconds: float = 0
    repeats: str = ""
    """Id of the ended run whose configuration must be given again, because nothing recorded what it was told."""


class WaitKind(StrEnum):
    """What a ticket can wait for; always a human."""

    NOT_STARTED = "not_started"
    PLAN_REVIEW = "plan_review"
    APPROVAL = "approval"
    DECISION_REFUSED = "decision_refused"
    """A decision was made that does not count; another one is needed."""
    MERGE_REFUSED = "merge_refused"
    NOTHING_CHANGED = "nothing_changed"
    BUDGET = "budget"
    FAILURES = "failures"
    CANCELLED = "cancelled"
    """An operator cancelled the last run, and says when it goes on by starting another."""


class WaitStep(Frozen):
    """Launch nothing until a human acts."""

    step: Literal["wait"] = "wait"
    kind: WaitKind
    reason: str


class DoneStep(Frozen):
    """The cycle has ended."""

    step: Literal["done"] = "done"
    ending: Ending
    reason: str


Step = Annotated[RunStep | WaitStep | DoneStep, Field(discriminator="step")]


def next_step(history: History, policy: Policy) -> RunStep | WaitStep | DoneStep:
    """What follows. The first route that applies is taken; then failures slow it down or stop it."""
    return _paced(history, policy, _routed(history, policy))


def resume_step(history: History, policy: Policy) -> RunStep | WaitStep | DoneStep:
    """What follows when a person says "go on": earlier failures neither delay nor stop it."""
    step = _routed(history, policy)
    stopped = _needs_human(history.runs[-1]) if history.runs and isinstance(step, RunStep) else None
    if stopped and stopped.kind is WaitKind.NOTHING_CHANGED:
        return _deliver(delivery_from("workshops"), "the agents are asked again")
    if isinstance(step, WaitStep) and step.kind is WaitKind.MERGE_REFUSED:
        return _merge_again(history)
    return step


def _merge_again(history: History) -> RunStep:
    """What a person's "go on" means for a refused merge: the forge is asked again, or the change brought up to date."""
    merge = history.value("merge", Merge)
    if merge and merge.refusal is RefusalKind.FORGE:
        return RunStep(job="release", assets=JOBS["release"][1:], reason="the forge is asked again")
    return _deliver(delivery_from("integration"), "the change is brought up to date again")


def _routed(history: History, policy: Policy) -> RunStep | WaitStep | DoneStep:
    for route in ROUTES:
        if step := route(history, policy):
            return _interrupted(history, step) or step
    step = _deliver(missing(history, "deliver"), "the delivery goes on with what is missing")
    return _interrupted(history, step) or step


# ------------------------------------------------------------------------------------------------- the routes


def _not_started(history: History, _: Policy) -> WaitStep | None:
    """No ticket was ever read."""
    if history.latest("ticket"):
        return None
    return WaitStep(kind=WaitKind.NOT_STARTED, reason="no run has read the ticket yet")


def _ended(history: History, _: Policy) -> DoneStep | None:
    """The outcome of this cycle is recorded."""
    outcome = history.value("outcome", Outcome)
    return DoneStep(ending=outcome.ending, reason=outcome.reason) if outcome else None


def _merged(history: History, policy: Policy) -> RunStep | None:
    """Merged: QA, then close. Nothing before the merge is ever done again.

    What was learned is kept before the end if it can be; it never holds the end up for long.
    """
    merge = history.value("merge", Merge)
    if merge is None or not merge.merged:
        return None
    left = tuple(asset for asset in ("knowledge", "qa_report") if history.current(asset) is None)
    examined = history.current("qa_report")
    if examined is None:
        return RunStep(job="release", assets=left, reason="merged: QA follows")
    tries = sum(1 for run in history.runs if run.seq > examined.seq)
    if left and tries < policy.max_failures - 1:
        return RunStep(job="release", assets=left, reason="merged and examined by QA: keep what was learned")
    return RunStep(job="close", assets=JOBS["close"], reason="merged and examined by QA")


def _decided(history: History, policy: Policy) -> RunStep | WaitStep | None:
    """A human decided about the current pull request."""
    approval = history.value("approval", Approval)
    if approval is None:
        return None
    if approval.head_moved:
        return _updated(history, policy, "the pull request's head moved")
    if not approval.counts:
        return WaitStep(kind=WaitKind.DECISION_REFUSED, reason=approval.refusal)
    if approval.decision.action is Action.REJECT:
        return RunStep(job="close", assets=JOBS["close"], reason=f"rejected by {approval.decision.actor}")
    if approval.decision.action is Action.REQUEST_CHANGES:
        return _deliver(delivery_from("workshops"), f"{approval.decision.actor} asked for changes: a new round")
    if approval.base_moved:
        return _updated(history, policy, "the base branch moved")
    return _merge(history, policy)


def _merge(history: History, policy: Policy) -> RunStep | WaitStep:
    """Approved: merge; a moved base or head is brought up to date, any other refusal waits."""
    merge = history.value("merge", Merge)
    if merge is None:
        return RunStep(job="release", assets=missing(history, "release"), reason="approved: merge")
    if merge.refusal in (RefusalKind.BASE_MOVED, RefusalKind.HEAD_MOVED):
        return _updated(history, policy, f"the merge was refused ({merge.refusal})")
    return WaitStep(kind=WaitKind.MERGE_REFUSED, reason=f"the forge refused to merge: {merge.reason}")


def _updated(history: History, policy: Policy, reason: str) -> RunStep | WaitStep:
    """Bring the change up to date and test it again, unless that was tried in vain."""
    if vain := why_not_updated(history, policy):
        return WaitStep(kind=WaitKind.MERGE_REFUSED, reason=f"{reason}: {vain}")
    return _deliver(delivery_from("integration"), f"{reason}: bring it up to date")


def _proposed(history: History, _: Policy) -> WaitStep | None:
    """The pull request is open: a human decides."""
    pull_request = history.value("pull_request", PullRequest)
    if pull_request is None:
        return None
    reason = f"pull request {pull_request.number} waits for a decision on {pull_request.head}"
    return WaitStep(kind=WaitKind.APPROVAL, reason=reason)


def _planned(history: History, policy: Policy) -> RunStep | WaitStep | None:
    """The architect spoke, and no plan goes on yet: plan again, or wait for a human, or go on."""
    if history.current("approved_plan") or history.current("architecture_review") is None:
        return None
    ruling = architecture_gate(history, policy)
    if not ruling.open:
        return _deliver(delivery_from("plan"), ruling.reason)
    asked = bool(history.runs) and history.runs[-1].status == "success" and history.current("plan_document")
    if policy.plan_review == "human" and asked:
        return WaitStep(kind=WaitKind.PLAN_REVIEW, reason="the plan waits for a human's approval")
    return None


def _tested(history: History, policy: Policy) -> RunStep | None:
    """The tests ended, and the gate behind them is still closed: rework, or go on."""
    if history.current("tested_diff") or any(history.current(a) is None for a in ("diff", "test_report")):
        return None
    ruling = tests_gate(history, policy)
    return None if ruling.open else _deliver(delivery_from("workshops"), ruling.reason)


def _reviewed(history: History, policy: Policy) -> RunStep | None:
    """All three reviews are in, and the gate behind them is still closed: rework, or go on."""
    if history.current("review_gate") or any(history.current(asset) is None for asset, _ in REVIEWS):
        return None
    ruling = review_gate_ruling(history, policy)
    return None if ruling.open else _deliver(delivery_from("workshops"), ruling.reason)


Route = Callable[[History, Policy], RunStep | WaitStep | DoneStep | None]

ROUTES: tuple[Route, ...] = (_not_started, _ended, _merged, _decided, _proposed, _planned, _tested, _reviewed)
"""In order of precedence: what cannot be undone, what a human said, then the stages of a delivery."""


# ------------------------------------------------------------------------------------------------- its pieces


def missing(history: History, job: JobName) -> tuple[str, ...]:
    """Assets of a job that are not current, in order: what a crash leaves to do."""
    return tuple(asset for asset in JOBS[job] if history.current(asset) is None)


def delivery_from(asset: str) -> tuple[str, ...]:
    """The delivery from `asset` on, everything made anew."""
    assets = JOBS["deliver"]
    return assets[assets.index(asset) :]


def _deliver(assets: tuple[str, ...], reason: str) -> RunStep:
    return RunStep(job="deliver", assets=assets, reason=reason)


def _interrupted(history: History, step: RunStep | WaitStep | DoneStep) -> RunStep | None:
    """A start, a decision or a cancellation whose run failed before it recorded it: the same run again.

    The history cannot know what that run was told, so its configuration is repeated.
    """
    run = history.runs[-1] if history.runs else None
    if run is None or run.status != "failure":
        return None
    recorded = {entry.asset for entry in history.entries if _before(history) < entry.seq < run.seq}
    if run.job == "close" and not isinstance(step, DoneStep) and history.cycle:
        return _again(run, "close", "the run that was to close the ticket failed")
    if run.job == "release" and _awaits_decision(step) and not recorded & {"approval", "merge"}:
        return _again(run, "release", "the run that was to record a decision failed")
    if run.job == "deliver" and isinstance(step, DoneStep) and "ticket" not in recorded:
        return _again(run, "deliver", "the run that was to start a new cycle failed")
    if isinstance(step, WaitStep) and step.kind is WaitKind.NOT_STARTED and run.job != "close":
        return _again(run, "deliver", "the run that was to read the ticket failed")
    return None


def _awaits_decision(step: RunStep | WaitStep | DoneStep) -> bool:
    kinds = (WaitKind.APPROVAL, WaitKind.DECISION_REFUSED, WaitKind.MERGE_REFUSED)
    return isinstance(step, WaitStep) and step.kind in kinds


def _again(run: EndedRun, job: JobName, reason: str) -> RunStep:
    return RunStep(job=job, assets=JOBS[job], reason=reason, repeats=run.run_id if run.job == job else "")


def _before(history: History) -> int:
    """`seq` of the last ended run but one: whatever is newer was made by the last run or after it."""
    return history.runs[-2].seq if len(history.runs) > 1 else -1


# ------------------------------------------------------------------------------------------------------ pacing


def _paced(history: History, policy: Policy, step: RunStep | WaitStep | DoneStep) -> RunStep | WaitStep | DoneStep:
    """A run after a failed one waits; after too many without progress, or one that only a human mends, none follows."""
    if not isinstance(step, RunStep) or not history.runs:
        return step
    last = history.runs[-1]
    if last.status == "cancelled":
        return WaitStep(kind=WaitKind.CANCELLED, reason=f"run {last.run_id} was cancelled; start one to go on")
    if stop := _needs_human(last):
        return stop
    failed, idle = _fruitless_runs(history)
    if max(failed, idle) >= policy.max_failures:
        what = f"failed; the last error: {last.error}" if failed >= policy.max_failures else "changed nothing"
        return WaitStep(kind=WaitKind.FAILURES, reason=f"{max(failed, idle)} runs in a row {what}")
    if last.status == "failure" and policy.backoff_seconds:
        delay = policy.backoff_seconds[min(max(failed, 1), len(policy.backoff_seconds)) - 1]
        return step.model_copy(update={"delay_seconds": delay})
    return step


def _needs_human(run: EndedRun) -> WaitStep | None:
    if run.status != "failure":
        return None
    kinds = {NothingChanged.code: WaitKind.NOTHING_CHANGED, ModelBudgetExceeded.code: WaitKind.BUDGET}
    for code, kind in kinds.items():
        if re.search(rf"\b{code}\b", run.error):
            return WaitStep(kind=kind, reason=run.error)
    return None


def _fruitless_runs(history: History) -> tuple[int, int]:
    """Runs since the last progress that failed, and that ended well without any.

    Progress is the first appearance of an artifact with its content. A run's progress is what appeared since the run
    before it ended (a ticket has one run at a time), so the failed run that made some counts as the first.
    """
    seen: set[tuple[str, str]] = set()
    failed = idle = position = 0
    for run in history.runs:
        progress = False
        while position < len(history.entries) and history.entries[position].seq < run.seq:
            entry = history.entries[position]
            progress |= (entry.asset, entry.sha256) not in seen
            seen.add((entry.asset, entry.sha256))
            position += 1
        failed, idle = (0, 0) if progress else (failed, idle)
        failed += run.status == "failure"
        idle += run.status == "success" and not progress
    fresh = any((entry.asset, entry.sha256) not in seen for entry in history.entries[position:])
    return (0, 0) if fresh else (failed, idle)
