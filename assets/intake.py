"""Intake: the ticket as it was read."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from atelier_dagster.factory.ticket import Ticket, TicketKey
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.step import Made, journey_asset, read_history, ticket_key
from atelier_dagster.ports import Forge
from resources.artifacts import ArtifactsResource
from resources.forge import ForgeResource
from resources.policy import PolicyResource
from resources.tracker import TrackerResource

_BODY_LIMIT = 100_000
"""Characters of a ticket's body that are read."""


@journey_asset(kinds={"markdown"})
async def ticket(
    context: dg.AssetExecutionContext,
    tracker: TrackerResource,
    forge: ForgeResource,
    artifacts: ArtifactsResource,
    policy: PolicyResource,
) -> Made:
    """The ticket and the code it is to change. The base commit stays the same for a whole cycle, so that materializing
    this again takes over an edited text but never silently moves the ground under work that was done."""
    key = ticket_key(context)
    history = await read_history(context, artifacts.store())
    cycle = int(context.run.tags.get(tags.CYCLE, history.cycle or 1))
    issue = await tracker.tracker().get_issue(key)
    if tags.BY_HAND in context.run.tags and not (issue.is_open and policy.label in issue.labels):
        await tracker.tracker().claim_issue(key, policy.label)
    earlier = history.latest("ticket") if history.cycle == cycle else None
    base = earlier.artifact.value if earlier else await _base(forge.forge(), key)
    value = Ticket(
        key=key,
        title=issue.title.strip() or f"Ticket {key.number}",
        body=issue.body[:_BODY_LIMIT],
        author=issue.author,
        labels=tuple(sorted(label for label in issue.labels if not label.startswith(policy.label))),
        url=issue.url,
        base_branch=base.base_branch,
        base_commit=base.base_commit,
        root_entries=base.root_entries,
    )
    return Made(value, cycle=max(cycle, 1))


async def _base(forge: Forge, key: TicketKey) -> Ticket:
    """Where the work starts: the tip of the default branch, now."""
    branch = await forge.default_branch(key.repo)
    commit = await forge.branch_head(key.repo, branch)
    entries: Sequence[str] | None = await forge.list_root_entries(key.repo, commit) if commit else ()
    return Ticket(
        key=key,
        title="-",
        body="",
        author="",
        base_branch=branch,
        base_commit=commit or "",
        root_entries=None if entries is None else tuple(entries[:500]),
    )
