"""Verdicts, and how an answer in prose becomes one. Not here: prompts, or what follows from a verdict."""

from __future__ import annotations

from enum import StrEnum

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
