"""What the three gates rule, and every outstanding concern. Not here: which run follows a closed gate (`routing`)."""

from __future__ import annotations

from atelier_dagster.factory.budgets import (
    REVIEWS,
    Policy,
    architecture_objections,
    architecture_refusals,
    architecture_refused,
    correction_refusals,
    review_refusals,
    review_refused,
    tests_failed,
)
from atelier_dagster.factory.change import Changes, Integration, TestedDiff, TestReport, TestStatus
from atelier_dagster.factory.lineage import UPSTREAM, History
from atelier_dagster.factory.plan import ApprovedPlan, ArchitectureReview, GreenfieldSpec, Plan
from atelier_dagster.factory.ticket import Analysis, Frozen
from atelier_dagster.factory.verdict import Review


class GateRuling(Frozen):
    """Whether a gate opens. `overridden`: only because the budget of redos is spent; `concerns` then say what stays."""

    open: bool
    overridden: bool = False
    concerns: tuple[str, ...] = ()
    reason: str = ""


def architecture_gate(history: History, policy: Policy) -> GateRuling:
    """Whether the current plan may be built. Waiting for a human (`plan_review`) is not this gate's business."""
    if closed := _closed_by_stale(history, ("plan", "greenfield_spec", "architecture_review")):
        return closed
    review = history.current("architecture_review")
    assert review
    concerns = _planning_concerns(history)
    if not architecture_refused(history, review):
        return GateRuling(open=True, concerns=concerns, reason="the architect approved the plan")
    refusals = architecture_refusals(history)
    if refusals <= policy.architecture_redos:
        return GateRuling(
            open=False,
            concerns=concerns,
            reason=f"the architect refused the plan ({refusals} of {policy.architecture_redos} redos)",
        )
    objections = _tagged("Architecture", architecture_objections(history, review))
    reason = f"the architect still objects after {policy.architecture_redos} redos"
    return GateRuling(open=True, overridden=True, concerns=_unique(concerns, objections), reason=reason)


def tests_gate(history: History, policy: Policy) -> GateRuling:
    """Whether the integrated change may be reviewed."""
    if closed := _closed_by_stale(history, UPSTREAM["tested_diff"]):
        return closed
    entry = history.current("test_report")
    assert entry
    concerns = _test_concerns(history)
    if not tests_failed(entry):
        missing = entry.artifact.value.status is TestStatus.MISSING
        return GateRuling(open=True, concerns=concerns, reason="there are no tests" if missing else "the tests passed")
    refusals = correction_refusals(history, entry.artifact.round)
    if refusals <= policy.correction_redos:
        reason = f"the tests failed ({refusals} of {policy.correction_redos} redos)"
        return GateRuling(open=False, concerns=concerns, reason=reason)
    reason = f"the tests still fail after {policy.correction_redos} redos"
    return GateRuling(open=True, overridden=True, concerns=concerns, reason=reason)


def review_gate_ruling(history: History, policy: Policy) -> GateRuling:
    """Whether the change may be proposed, with every outstanding concern of the whole journey."""
    if closed := _closed_by_stale(history, UPSTREAM["review_gate"]):
        return closed
    reviews = [entry for asset, _ in REVIEWS if (entry := history.current(asset))]
    concerns = outstanding_concerns(history)
    refused = [entry for entry in reviews if review_refused(entry)]
    if not refused:
        return GateRuling(open=True, concerns=concerns, reason="every reviewer approved")
    refusals = review_refusals(history, refused[0].artifact.round)
    if refusals <= policy.review_redos:
        reason = f"reviewers asked for changes ({refusals} of {policy.review_redos} redos)"
        return GateRuling(open=False, concerns=concerns, reason=reason)
    reason = f"reviewers still object after {policy.review_redos} redos"
    return GateRuling(open=True, overridden=True, concerns=concerns, reason=reason)


def outstanding_concerns(history: History) -> tuple[str, ...]:
    """Everything that the current artifacts leave open, each once, in order of the journey."""
    return _unique(
        _planning_concerns(history),
        _approved_plan_concerns(history),
        _building_concerns(history),
        _test_concerns(history),
        _review_concerns(history),
    )


def _closed_by_stale(history: History, assets: tuple[str, ...]) -> GateRuling | None:
    for asset in assets:
        if reason := history.stale_reason(asset):
            return GateRuling(open=False, reason=reason)
    return None


def _planning_concerns(history: History) -> tuple[str, ...]:
    concerns: list[str] = []
    if analysis := history.value("analysis", Analysis):
        concerns += _tagged("Analysis", analysis.concerns)
    if (plan := history.value("plan", Plan)) and plan.reduced:
        concerns.append(f"[Architecture] the plan was reduced to one task: {plan.reduced}")
    if (spec := history.value("greenfield_spec", GreenfieldSpec)) and spec.problem:
        concerns.append(f"[Architecture] {spec.problem}")
    review = history.value("architecture_review", ArchitectureReview)
    if review and review.verdict.concern:
        concerns.append(f"[Architecture] {review.verdict.concern}")
    return tuple(concerns)


def _approved_plan_concerns(history: History) -> tuple[str, ...]:
    approved = history.value("approved_plan", ApprovedPlan)
    if approved is None:
        return ()
    reduced = approved.plan.reduced
    extra = (f"[Architecture] the plan was reduced to one task: {reduced}",) if reduced else ()
    return (*approved.concerns, *extra)


def _building_concerns(history: History) -> tuple[str, ...]:
    concerns: list[str] = []
    for task in tasks.tasks if (tasks := history.value("changes", Changes)) else ():
        if task.problem:
            concerns.append(f"[Building] task {task.task_id}: {task.problem}")
        if task.out_of_scope:
            concerns.append(f"[Scope] task {task.task_id} changed files outside its scope: {_some(task.out_of_scope)}")
    if integration := history.value("integration", Integration):
        concerns += [
            f"[Integration] branch {branch} conflicted and is not in this change" for branch in integration.conflicts
        ]
    return tuple(concerns)


def _test_concerns(history: History) -> tuple[str, ...]:
    report = history.value("test_report", TestReport)
    if report is None or report.status is TestStatus.PASSED:
        return ()
    if report.status is TestStatus.MISSING:
        return ("[Tests] nothing was tested: the change has no `.devcontainer/test.sh`",)
    how = "were stopped by their time limit" if report.timed_out else f"ended with exit code {report.exit_code}"
    return (f"[Tests] the tests {how}",)


def _review_concerns(history: History) -> tuple[str, ...]:
    tested = history.value("tested_diff", TestedDiff)
    concerns: list[str] = list(tested.concerns) if tested else []
    unreviewed: list[str] = []
    for asset, tag in REVIEWS:
        if review := history.value(asset, Review):
            concerns += review_objections(tag, review)
            concerns += [f"[{tag}] {review.verdict.concern}"] if review.verdict.concern else []
            unreviewed += review.unreviewed
    if unreviewed:
        concerns.append(f"[Review] not reviewed for size or kind: {_some(tuple(dict.fromkeys(unreviewed)))}")
    return tuple(concerns)


def review_objections(tag: str, review: Review) -> tuple[str, ...]:
    """What a refusing reviewer wants, tagged; nothing when it approved."""
    if not review.verdict.refused:
        return ()
    return _tagged(tag, review.verdict.comments or ("asked for changes without saying which",))


def _tagged(tag: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"[{tag}] {text}" for text in texts)


def _unique(*groups: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for group in groups for text in group))


def _some(paths: tuple[str, ...], limit: int = 20) -> str:
    more = f" and {len(paths) - limit} more" if len(paths) > limit else ""
    return ", ".join(paths[:limit]) + more
