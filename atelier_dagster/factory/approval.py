"""Human decisions: who may decide, on which head, and when a decision goes stale. Not here: where they are fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple

from atelier_dagster.factory.answers import clean
from atelier_dagster.factory.ticket import Frozen

if TYPE_CHECKING:
    from atelier_dagster.factory.change import PullRequest
    from atelier_dagster.factory.lineage import History


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


def judge(
    decision: HumanDecision,
    pull_request: PullRequest,
    *,
    approvers: frozenset[str],
    bot: str,
    equivalent_heads: frozenset[str],
    base: str,
    base_moved: bool,
    allow_ui: bool,
    head_now: str = "",
) -> Approval:
    """Whether a decision counts.

    `approvers` are those configured to decide; others may where the source says so. `equivalent_heads` are earlier
    heads of this pull request with the very same diff. `head_now` is the forge's head ("" where it cannot be told);
    where it moved only a rejection counts.
    """
    allowed = not (why := _not_allowed(decision, approvers, bot, allow_ui))
    moved = head_now not in ("", pull_request.head) and decision.action is not Action.REJECT
    why = why or (f"the pull request's head is now {head_now}, which nobody tested" if moved else "")
    why = why or _wrong_head(decision, equivalent_heads | {pull_request.head, head_now or pull_request.head})
    return Approval(
        decision=decision,
        counts=not why,
        refusal=why,
        head=head_now or pull_request.head,
        base=base,
        base_moved=base_moved,
        head_moved=allowed and moved,
        concerns_shown=pull_request.concerns,
    )


def _not_allowed(decision: HumanDecision, approvers: frozenset[str], bot: str, allow_ui: bool) -> str:
    """Why this actor decides nothing; "" when they may."""
    if decision.is_bot or (bot and decision.actor.lower() == bot.lower()):
        return "a bot decides nothing"
    if decision.source is DecisionSource.UI:
        return "" if allow_ui else "decisions from Dagster's UI are not allowed: it knows no users"
    if not decision.actor:
        return "nobody signed it"
    if decision.may_decide or decision.actor in approvers:
        return ""
    return f"{decision.actor} may not decide: no configured approver, and no write permission"


def _wrong_head(decision: HumanDecision, heads: frozenset[str]) -> str:
    """Why a decision does not speak of the present change; "" when it does.

    Only whole hashes name a head: somebody who may push can find a commit with a chosen short one.
    """
    if decision.head in heads:
        return ""
    if not decision.head:
        return "an approval must name the head commit" if decision.action is Action.APPROVE else ""
    if any(head.startswith(decision.head) for head in heads):
        return f"{decision.head} is cut short: name the whole hash of the head commit"
    return f"it speaks of {decision.head}, which is not the head any more"


def equivalent_heads(history: History) -> frozenset[str]:
    """Heads of this cycle's pull request that have the same diff as the present one, itself included."""
    present = history.current("pull_request")
    if present is None:
        return frozenset()
    wanted = present.artifact.value.diff_sha256
    opened = (entry.artifact.value for entry in history.all("pull_request", history.cycle))
    return frozenset(value.head for value in opened if value.diff_sha256 == wanted)


# ---------------------------------------------------------------------------------------------------- commands


class Command(NamedTuple):
    """A `/atelier` command in a comment. `sha` is "" when it names no commit."""

    action: Action | Literal["retry"]
    sha: str
    reason: str


_COMMENT_LIMIT = 100_000
_REASON = 4_000
_WORDS: dict[str, Action | Literal["retry"]] = {
    "approve": Action.APPROVE,
    "reject": Action.REJECT,
    "changes": Action.REQUEST_CHANGES,
    "retry": "retry",
}
_COMMAND = re.compile(r"/atelier[ \t]+(approve|reject|changes|retry)(?![\w-])[ \t]*(.*)", re.IGNORECASE | re.DOTALL)
_SHA = re.compile(r"(?=[a-f]*[0-9])[0-9a-f]{7,64}(?![^\s])")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_HTML_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


def parse_command(comment_body: str) -> Command | None:
    """The first command that starts a line of a comment, with all that follows it as reason.

    Code, quotes and what a reader does not see (HTML comments) hold no command.
    """
    text = comment_body[:_COMMENT_LIMIT].replace("\r\n", "\n").replace("\r", "\n")
    found: list[str] = []
    for line in _spoken(_HTML_COMMENT.sub("", text)):
        starts = _COMMAND.match(line) is not None
        if starts and found:
            break
        if starts or found:
            found.append(line)
    match = _COMMAND.match("\n".join(found))
    if match is None:
        return None
    rest = match.group(2).strip()
    sha = found_sha.group() if (found_sha := _SHA.match(rest)) else ""
    return Command(_WORDS[match.group(1).lower()], sha, clean(rest[len(sha) :], _REASON))


def _spoken(text: str) -> Iterator[str]:
    """Lines outside of code fences and quotes. A fence that is never closed runs to the end, as in Markdown."""
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark.group(1).startswith(fence) and not mark.group(2).strip():
                fence = ""
        elif mark and not (mark.group(1)[0] == "`" and "`" in mark.group(2)):
            fence = mark.group(1)
        elif not line.lstrip().startswith(">"):
            yield line
