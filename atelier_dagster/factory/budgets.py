"""How often the journey may turn back, and how often it has. Not here: where it turns back to (`routing`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from atelier_dagster.factory.approval import Approval
from atelier_dagster.factory.change import Merge, RefusalKind, TestReport, TestStatus
from atelier_dagster.factory.lineage import Entry, History
from atelier_dagster.factory.plan import ArchitectureReview, Plan
from atelier_dagster.factory.ticket import Frozen
from atelier_dagster.factory.verdict import Review

REVIEWS: tuple[tuple[str, str], ...] = (
    ("code_review", "Code"),
    ("security_review", "Security"),
    ("ops_review", "Ops"),
)
"""The three reviews of a delivery, each with the tag of its objections."""


class Policy(Frozen):
    """What an operator sets about routing. The three redo budgets are counted apart."""

    architecture_redos: int = Field(default=3, ge=0)
    """New plans after refusals of the architect, in a cycle."""
    correction_redos: int = Field(default=3, ge=0)
    """Reworks after failed tests, in a round."""
    review_redos: int = Field(default=3, ge=0)
    """Reworks after refusals of reviewers, in a round."""
    plan_review: Literal["auto", "human"] = "auto"
    max_failures: int = Field(default=3, ge=1)
    """Runs that may fail, or end without a trace, one after the other before a human is asked."""
    backoff_seconds: tuple[float, ...] = (10, 60, 300)
    """Wait before the run that follows the first, second, ... failure; the last one is for all later ones."""
    base_updates: int = Field(default=5, ge=0)
    """How often one human decision may bring the change up to date with a moving base."""


def architecture_refused(history: History, review: Entry) -> bool:
    """Whether an architecture review refuses: by its verdict, or because the guards found faults in the plan."""
    assert isinstance(review.artifact.value, ArchitectureReview)
    return review.artifact.value.verdict.refused or bool(_findings(history, review))


def architecture_objections(history: History, review: Entry) -> tuple[str, ...]:
    """What the planner must answer: the architect's comments and the guards' findings, each once."""
    assert isinstance(review.artifact.value, ArchitectureReview)
    comments = (*review.artifact.value.verdict.comments, *_findings(history, review))
    return tuple(dict.fromkeys(comments)) or ("the architect asked for another split without saying which",)


def _findings(history: History, review: Entry) -> tuple[str, ...]:
    plan = history.find("plan", review.artifact.inputs.get("plan", ""))
    if plan is None:
        return ()
    assert isinstance(plan.artifact.value, Plan)
    return tuple(finding.message for finding in plan.artifact.value.findings)


def tests_failed(report: Entry) -> bool:
    """Whether the tests ran and did not pass; missing ones are a concern, no failure."""
    assert isinstance(report.artifact.value, TestReport)
    return report.artifact.value.status is TestStatus.FAILED


def review_refused(review: Entry) -> bool:
    """Whether a reviewer asked for changes."""
    assert isinstance(review.artifact.value, Review)
    return review.artifact.value.verdict.refused


def architecture_refusals(history: History) -> int:
    """Distinct splits refused in this cycle."""
    refused = [e for e in history.all("architecture_review", history.cycle) if architecture_refused(history, e)]
    return len({tuple(sorted(entry.artifact.inputs.items())) for entry in refused})


def correction_refusals(history: History, round_: int) -> int:
    """Distinct integrations whose tests failed in this cycle and round."""
    reports = _of_round(history, "test_report", round_)
    return len({entry.artifact.inputs.get("integration") for entry in reports if tests_failed(entry)})


def review_refusals(history: History, round_: int) -> int:
    """Distinct diffs that any reviewer refused in this cycle and round."""
    reviews = [entry for asset, _ in REVIEWS for entry in _of_round(history, asset, round_)]
    return len({entry.artifact.inputs.get("diff") for entry in reviews if review_refused(entry)})


class UpdateRequest(Frozen):
    """A decision that could not be carried out because the base or the head had moved."""

    seq: int
    decision: str
    base: str
    head: str


def update_requests(history: History) -> tuple[UpdateRequest, ...]:
    """Every time in this cycle that the change had to be brought up to date, oldest first."""
    found: list[UpdateRequest] = []
    for entry in history.entries:
        if entry.artifact.cycle != history.cycle or not (approval := _moved(history, entry)):
            continue
        found.append(
            UpdateRequest(
                seq=entry.seq,
                decision=f"{approval.decision.source}:{approval.decision.id}",
                base=approval.base,
                head=approval.head,
            )
        )
    return tuple(found)


def _moved(history: History, entry: Entry) -> Approval | None:
    """The approval that met a moved base or head in this entry, if one did."""
    value = entry.artifact.value
    if isinstance(value, Approval):
        return value if value.base_moved or value.head_moved else None
    if isinstance(value, Merge) and value.refusal in (RefusalKind.BASE_MOVED, RefusalKind.HEAD_MOVED):
        approval = history.find("approval", entry.artifact.inputs.get("approval", ""))
        return approval.artifact.value if approval else None
    return None


def why_not_updated(history: History, policy: Policy) -> str:
    """Why bringing the change up to date once more makes no sense; "" when it does."""
    requests = update_requests(history)
    if not requests:
        return ""
    last = requests[-1]
    same = [request for request in requests if (request.base, request.head) == (last.base, last.head)]
    if any(entry.seq > same[0].seq for entry in history.all("integration", history.cycle)):
        return "the change was brought up to date, and is refused again with the same base and head"
    moves = {(request.base, request.head) for request in requests if request.decision == last.decision}
    if len(moves) > policy.base_updates:
        return f"base or head moved {len(moves)} times since the same decision"
    return ""


def _of_round(history: History, asset: str, round_: int) -> list[Entry]:
    return [entry for entry in history.all(asset, history.cycle) if entry.artifact.round == round_]
