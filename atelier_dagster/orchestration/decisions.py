"""Finding human decisions where they were made: a run is only told source and id, and fetches the rest itself."""

from __future__ import annotations

from atelier_dagster.factory.approval import Action, DecisionSource, HumanDecision, parse_command
from atelier_dagster.factory.errors import InvalidInput, NotFound
from atelier_dagster.factory.ticket import RepoRef, TicketKey
from atelier_dagster.ports import Comment, Forge, Tracker

_SHORTEST_SHA = 7


async def fetch_decision(forge: Forge, repo: RepoRef, number: int, source: str, decision_id: str) -> HumanDecision:
    """The decision as its source has it now. Raises `NotFound`: what a run's configuration claims proves nothing.

    Source `ui` is the exception that an operator must allow: Dagster's UI knows no users, so the configuration is all
    there is (`id` is `approve <head>`, `reject` or `request_changes`), and it is recorded as unauthenticated.
    """
    if source == DecisionSource.UI.value:
        return _from_ui(decision_id)
    for decision in await forge.decisions(repo, number):
        if decision.source.value == source and decision.id == decision_id:
            return decision
    raise NotFound(
        f"there is no decision {source}:{decision_id} on pull request {number}",
        fix="decide with a review, a `/atelier approve` comment or `atelier approve`",
    )


def _from_ui(text: str) -> HumanDecision:
    word, _, head = text.strip().partition(" ")
    if word not in set(Action):
        raise InvalidInput(f"{word!r} is no decision", fix="write approve <head>, reject or request_changes as id")
    source = DecisionSource.UI
    return HumanDecision(source=source, id=text, actor="unauthenticated", action=Action(word), head=head.strip())


def may_speak(comment: Comment, approvers: frozenset[str], bot: str) -> bool:
    """Whether a comment's author may give orders."""
    return not comment.is_bot and comment.author != bot and (comment.author_may_write or comment.author in approvers)


async def plan_approver(tracker: Tracker, key: TicketKey, plan_sha256: str, approvers: frozenset[str], bot: str) -> str:
    """Who approved exactly this plan on the ticket (`/atelier approve <plan hash>`), or ""."""
    for comment in await tracker.comments(key):
        command = parse_command(comment.body)
        if command is None or not may_speak(comment, approvers, bot):
            continue
        action, sha, _reason = command
        if action == "approve" and len(sha) >= _SHORTEST_SHA and plan_sha256.startswith(sha):
            return comment.author
    return ""


async def retry_asked(tracker: Tracker, key: TicketKey, approvers: frozenset[str], bot: str) -> Comment | None:
    """The newest `/atelier retry` on the ticket by somebody who may give orders."""
    for comment in reversed(await tracker.comments(key)):
        command = parse_command(comment.body)
        if command is not None and command.action == "retry" and may_speak(comment, approvers, bot):
            return comment
    return None
