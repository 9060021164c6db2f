"""Human decisions: who may decide, on which head, and when a decision goes stale. Not here: where they are fetched."""

from __future__ import annotations

from enum import StrEnum

from atelier_dagster.factory.ticket import Frozen


class Action(StrEnum):
    """What a human can decide about a pull request."""

    APPROVE = "approve"
    REJECT = "reject"
    REQUEST_CHANGES = "request_changes"


class DecisionSource(StrEnum):
    """Where a decision was made."""

    REVIEW = "review"
    """A review on the forge's pull request."""
    COMMENT = "comment"
    """A `/atelier ...` command in a comment."""
    CLI = "cli"
    """`atelier approve|reject` on the local forge: the operating-system user."""
    DOCUMENT = "document"
    """A checked box in the ticket's Docs page."""
    UI = "ui"
    """Dagster's UI, which knows no users: off unless configured, recorded as unauthenticated."""


class HumanDecision(Frozen):
    """A decision as fetched from its source. `head` is the commit it names ("" if it names none)."""

    source: DecisionSource
    id: str
    actor: str
    action: Action
    head: str
    reason: str = ""
    comments: tuple[str, ...] = ()
    may_decide: bool = False
    """Whether the source says that the actor has write permission."""
    is_bot: bool = False


class Approval(Frozen):
    """A decision, and whether it counts. Only `counts` opens anything; `refusal` says why it does not."""

    decision: HumanDecision
    counts: bool
    refusal: str = ""
    head: str
    """The pull request's head when the decision was judged."""
    base: str = ""
    """The base branch's head when the decision was judged."""
    base_moved: bool = False
    """The base branch has commits that `head` does not contain."""
    head_moved: bool = False
    """Someone allowed decided, but the forge's head is not the one that this pull request was opened with."""
    concerns_shown: tuple[str, ...] = ()
