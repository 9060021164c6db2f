"""What a changed ticket means for its journey: a pure difference between the tracker's word and what is known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from atelier_dagster.factory.change import Ending
from atelier_dagster.ports import Issue


class Change(StrEnum):
    """What intake does about a ticket."""

    NOTHING = "nothing"
    START = "start"
    STOP = "stop"
    REFUSE = "refuse"
    """Labelled, but its author may not drive agents."""


@dataclass(frozen=True)
class Known:
    """What is known of a ticket. `cycle` 0: never taken in."""

    cycle: int = 0
    ending: Ending | None = None
    """How the present cycle ended, if it has."""


def intake_change(issue: Issue, known: Known, *, label: str, authors: frozenset[str]) -> Change:
    """Decide about one ticket from its present state alone, so that order, repeats and restarts do not matter.

    A cancelled ticket that is open and labelled again starts its next cycle; a merged or rejected one only does so
    on request (`atelier submit`, `/atelier retry`).
    """
    wanted = issue.is_open and label in issue.labels
    if not wanted:
        return Change.STOP if known.cycle and known.ending is None else Change.NOTHING
    if known.cycle and known.ending is not Ending.CANCELLED:
        return Change.NOTHING
    if not (issue.author_may_write or issue.author in authors):
        return Change.REFUSE
    return Change.START
