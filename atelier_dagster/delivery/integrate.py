"""Makes one branch, the pull request's head, out of what agents delivered. Not here: how a merge is made."""

from __future__ import annotations

from collections.abc import Sequence

from atelier_dagster.delivery.repository import HostRepository
from atelier_dagster.factory.change import Integration, TaskChange
from atelier_dagster.gitio import branch_ref


async def integrate(
    repository: HostRepository,
    *,
    branch: str,
    base_branch: str,
    start: str,
    base_now: str,
    pushed: str,
    changes: Sequence[TaskChange],
) -> Integration:
    """Merge every delivery onto what is `pushed` already, else onto the base branch as it is now (`base_now`).

    `start` is the base's commit that the ticket began with; each is "" where there is none. What was pushed stays in
    the head, so that nothing is ever forced. A branch that conflicts is left out and named in `conflicts`.
    """
    onto = pushed or (base_now if base_now and await _follows(repository, base_now, start) else start)
    branches = {change.branch: change.head for change in changes if change.head != change.base}
    deliveries = await repository.merge(branches, onto)
    head, conflicts = deliveries.head, list(deliveries.conflicts)
    if base_now and head:
        updated = await repository.update_with_base(head, base_now, base_branch)
        head = updated.head
        conflicts += updated.conflicts
    if head:
        await repository.set_ref(branch_ref(branch), head)
    return Integration(
        branch=branch,
        base=await repository.shared(base_now, head) if base_now and head else "",
        head=head,
        merged=deliveries.merged,
        conflicts=tuple(conflicts),
    )


async def _follows(repository: HostRepository, commit: str, earlier: str) -> bool:
    return not earlier or await repository.contains(commit, earlier)
