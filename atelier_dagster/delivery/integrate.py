"""One branch out of every delivery, on top of the base as it is now. Merges in the host's repository, without a tree."""

from __future__ import annotations

from collections.abc import Sequence

from atelier_dagster.delivery.repository import HostRepository
from atelier_dagster.factory.change import Integration, TaskChange


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
    """Merge deliveries, then what people pushed to `branch`, then the base branch as it is now.

    `start` is the commit that the ticket's work began at, `base_now` and `pushed` the forge's tips ("" for none).
    What conflicts is left out whole and named in `conflicts`. The same input gives the same head.
    """
    delivered = {change.branch: change.head for change in changes if change.head and change.head != change.base}
    onto = _onto(changes, start)
    made = await repository.merge(delivered, onto)
    head, merged, conflicts = made.head, list(made.merged), list(made.conflicts)
    if pushed and head:
        people = await repository.update_with_base(head, pushed, f"what was pushed to {branch}")
        head, conflicts = people.head, [*conflicts, *people.conflicts]
    base = start
    if base_now and head:
        update = await repository.update_with_base(head, base_now, base_branch)
        head, conflicts = update.head, [*conflicts, *update.conflicts]
        base = start if update.conflicts else base_now
    if head:
        await repository.set_ref(
            f"refs/heads/{branch}", head
        )  # nothing else may name it yet: keep it from being pruned
    return Integration(branch=branch, base=base, head=head, merged=tuple(merged), conflicts=tuple(conflicts))


def _onto(changes: Sequence[TaskChange], start: str) -> str:
    """Deliveries that all began at one commit are merged onto it (for rework: what was integrated before)."""
    bases = {change.base for change in changes}
    return bases.pop() if len(bases) == 1 else start
