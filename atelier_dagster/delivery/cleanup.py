"""Removes what a ticket leaves running. Not here: when a ticket has ended."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.ports import Workshops


@dataclass(frozen=True)
class Cleanup:
    """Names of the workshops that are gone now, and why others are not."""

    removed: tuple[str, ...]
    problems: tuple[str, ...] = ()


async def remove_workshops(workshops: Workshops, ticket: str, keep: Container[str] = ()) -> Cleanup:
    """Delete every workshop of a ticket (a partition key) but those in `keep`. Again, it removes what is left.

    Raises only when they cannot be listed; one that cannot be deleted is a problem, and the others go on.
    """
    removed: list[str] = []
    problems: list[str] = []
    for status in await workshops.list(ticket=ticket):
        if status.name in keep:
            continue
        try:
            await workshops.delete(status.name)
        except AtelierError as error:
            problems.append(f"{status.name}: {error}")
        else:
            removed.append(status.name)
    return Cleanup(tuple(removed), tuple(problems))
