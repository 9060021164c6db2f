"""What a new plan or a new delivery starts from: its numbers, the feedback to answer. Not here: whether one starts."""

from __future__ import annotations

from pydantic import Field

from atelier_dagster.factory.approval import Action, Approval
from atelier_dagster.factory.budgets import (
    REVIEWS,
    architecture_objections,
    architecture_refused,
    review_refused,
    tests_failed,
)
from atelier_dagster.factory.change import Campaign, TestReport
from atelier_dagster.factory.gates import review_objections
from atelier_dagster.factory.lineage import Entry, History
from atelier_dagster.factory.ticket import Frozen


class PlanningStart(Frozen):
    """How the next `plan` is numbered, and the objections it must answer (`feedback` names where they stand)."""

    attempt: int
    objections: tuple[str, ...] = ()
    feedback: dict[str, str] = Field(default_factory=dict)


class BuildingStart(Frozen):
    """How the next `workshops` is numbered, and what it must answer, as plain and untrusted text."""

    round: int
    attempt: int
    rework: bool = False
    feedback_texts: tuple[str, ...] = ()
    feedback: dict[str, str] = Field(default_factory=dict)


def planning_start(history: History) -> PlanningStart:
    """A refusal that is current asks for the next attempt; otherwise the present attempt is made again."""
    plan = _latest_from_current(history, "plan", "analysis")
    review = history.current("architecture_review")
    if plan and review and architecture_refused(history, review):
        return PlanningStart(
            attempt=plan.artifact.attempt + 1,
            objections=architecture_objections(history, review),
            feedback={"architecture_review": review.sha256},
        )
    if plan is None:
        return PlanningStart(attempt=1)
    answered = history.find("architecture_review", plan.artifact.feedback.get("architecture_review", ""))
    objections = architecture_objections(history, answered) if answered else ()
    return PlanningStart(attempt=plan.artifact.attempt, objections=objections, feedback=plan.artifact.feedback)


def building_start(history: History) -> BuildingStart:
    """A refusal that is current asks for rework; otherwise the present delivery is made again, or the first begins."""
    entry = _latest_from_current(history, "workshops", "approved_plan")
    if entry is None:
        return BuildingStart(round=_last_round(history), attempt=1)
    campaign = entry.artifact.value
    assert isinstance(campaign, Campaign)
    if start := _new_round(history, campaign) or _rework(history, campaign):
        return start
    return BuildingStart(
        round=campaign.round,
        attempt=campaign.attempt,
        rework=campaign.rework,
        feedback_texts=campaign.feedback,
        feedback=entry.artifact.feedback,
    )


def _new_round(history: History, campaign: Campaign) -> BuildingStart | None:
    """A human's request for changes: fresh budgets, on top of what there is."""
    entry = history.current("approval")
    approval = history.value("approval", Approval)
    if entry is None or approval is None or not approval.counts:
        return None
    decision = approval.decision
    if decision.action is not Action.REQUEST_CHANGES:
        return None
    texts = [text for text in (decision.reason, *decision.comments) if text.strip()]
    return BuildingStart(
        round=campaign.round + 1,
        attempt=1,
        rework=True,
        feedback_texts=tuple(f"[Human] {text}" for text in texts or ["asked for changes without saying which"]),
        feedback={"approval": entry.sha256},
    )


def _rework(history: History, campaign: Campaign) -> BuildingStart | None:
    """Failed tests and refusing reviewers, everything that is current at once."""
    texts: list[str] = []
    feedback: dict[str, str] = {}
    report = history.current("test_report")
    if report and tests_failed(report):
        texts.append(_failure_text(report.artifact.value))
        feedback["test_report"] = report.sha256
    for asset, tag in REVIEWS:
        review = history.current(asset)
        if review and review_refused(review):
            texts += review_objections(tag, review.artifact.value)
            feedback[asset] = review.sha256
    if not feedback:
        return None
    return BuildingStart(
        round=campaign.round,
        attempt=campaign.attempt + 1,
        rework=True,
        feedback_texts=tuple(texts),
        feedback=feedback,
    )


def _failure_text(report: TestReport) -> str:
    how = "were stopped by their time limit" if report.timed_out else f"ended with exit code {report.exit_code}"
    return f"[Tests] `.devcontainer/test.sh`: the tests {how}. The end of their output:\n{report.output_tail}"


def _latest_from_current(history: History, asset: str, upstream: str) -> Entry | None:
    """The last `asset` of this cycle that was made from the current `upstream`."""
    source = history.current(upstream)
    made = [
        entry
        for entry in history.all(asset, history.cycle)
        if source and entry.artifact.inputs.get(upstream) == source.sha256
    ]
    return made[-1] if made else None


def _last_round(history: History) -> int:
    return max((entry.artifact.round for entry in history.all("workshops", history.cycle)), default=1)
