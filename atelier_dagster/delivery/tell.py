"""Telling people on the ticket and the pull request. One comment a topic, kept current. Not here: the words."""

from __future__ import annotations

from atelier_dagster.factory.ticket import RepoRef, TicketKey
from atelier_dagster.ports import Forge, Tracker

_LIMIT = 60_000
"""Characters of a comment; forges refuse longer ones (GitHub's limit is 65,536)."""


async def tell(tracker: Tracker, key: TicketKey, topic: str, text: str) -> None:
    """Say something on the ticket, or replace what was said under the same topic."""
    await tracker.upsert_comment(key, f"atelier:{topic}", text[:_LIMIT])


async def tell_reviewers(forge: Forge, repo: RepoRef, number: int, topic: str, text: str) -> None:
    """Say something on the pull request, or replace what was said under the same topic."""
    await forge.upsert_pull_request_comment(repo, number, f"atelier:{topic}", text[:_LIMIT])
