"""Verdicts, and how an answer in prose becomes one. Not here: prompts, or what follows from a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from atelier_dagster.factory.answers import last_object, texts
from atelier_dagster.factory.ticket import Frozen


class Decision(StrEnum):
    """What a reviewer can say."""

    APPROVE = "approve"
    REQUEST_CHANGES = "request_changes"


class ReviewVerdict(Frozen):
    """A reviewer's verdict. `concern` is set when it counts as approve only because it could not be read."""

    verdict: Decision
    comments: tuple[str, ...] = ()
    concern: str = ""

    @property
    def refused(self) -> bool:
        """True when the reviewer asks for changes."""
        return self.verdict is Decision.REQUEST_CHANGES


class Review(Frozen):
    """One of the three reviews of a delivery. `triggered` False: no path matched `patterns`, nobody was asked."""

    role: str
    triggered: bool
    verdict: ReviewVerdict
    patterns: tuple[str, ...] = ()
    matched: tuple[str, ...] = ()
    parts: int = 0
    """How many parts the diff was reviewed in."""
    unreviewed: tuple[str, ...] = ()
    """Paths left out of the review for their size or kind."""


class QaDecision(StrEnum):
    """What QA can say."""

    PASS = "pass"
    FAIL = "fail"


class QaVerdict(Frozen):
    """The QA agent's answer. Unreadable, or without `evidence_files`, counts as fail."""

    verdict: QaDecision
    comments: tuple[str, ...] = ()
    evidence_files: tuple[str, ...] = ()


UNREADABLE = "the answer could not be read, and counts as approve: nobody reviewed this"

_COMMENTS = 50
_COMMENT_LENGTH = 4_000
_EVIDENCE = 50
_REVIEW_WORDS = {
    "approve": Decision.APPROVE,
    "approved": Decision.APPROVE,
    "request_changes": Decision.REQUEST_CHANGES,
    "changes_requested": Decision.REQUEST_CHANGES,
    "reject": Decision.REQUEST_CHANGES,
    "rejected": Decision.REQUEST_CHANGES,
}
_QA_WORDS = {
    "pass": QaDecision.PASS,
    "passed": QaDecision.PASS,
    "fail": QaDecision.FAIL,
    "failed": QaDecision.FAIL,
}


def parse_review(text: str) -> ReviewVerdict:
    """The verdict in a reviewer's answer. Never raises: an unreadable answer approves, with a concern that says so."""
    answer = last_object(text, ("verdict",))
    decision = _REVIEW_WORDS.get(_word(answer))
    if answer is None or decision is None:
        return ReviewVerdict(verdict=Decision.APPROVE, concern=UNREADABLE)
    return ReviewVerdict(verdict=decision, comments=_comments(answer.get("comments")))


def parse_qa(text: str) -> QaVerdict:
    """The verdict in a QA agent's answer. Never raises: unreadable, or without `evidence_files`, is a fail."""
    answer = last_object(text, ("verdict",))
    decision = _QA_WORDS.get(_word(answer))
    if answer is None or decision is None:
        return QaVerdict(verdict=QaDecision.FAIL, comments=("QA's answer could not be read",))
    comments = _comments(answer.get("comments"))
    files = texts(answer.get("evidence_files"), _EVIDENCE, 1_000)
    if not files:
        return QaVerdict(verdict=QaDecision.FAIL, comments=(*comments, "QA named no evidence"))
    return QaVerdict(verdict=decision, comments=comments, evidence_files=files)


def _word(answer: Mapping[str, Any] | None) -> str:
    verdict = answer.get("verdict") if answer else None
    return "_".join(verdict.lower().replace("-", " ").replace("_", " ").split()) if isinstance(verdict, str) else ""


def _comments(value: object) -> tuple[str, ...]:
    return texts(value, _COMMENTS, _COMMENT_LENGTH)
