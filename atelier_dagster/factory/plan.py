"""Plans. Belongs here: sub-tasks, guards that check a plan by code, waves. Not here: what a model says of it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from atelier_dagster.factory.ticket import Frozen
from atelier_dagster.factory.verdict import ReviewVerdict


class SubTask(Frozen):
    """One unit of work for one workshop. `scope` is gitignore-style globs of the paths that it may change."""

    id: str
    title: str
    description: str = ""
    scope: tuple[str, ...]
    role: str = "developer"
    devcontainer: str = ""
    depends_on: tuple[str, ...] = ()
    service_port: int | None = Field(default=None, ge=1, le=65535)
    service_command: str = ""
    service_health: str = ""
    contract_path: str = ""


class FindingKind(StrEnum):
    """What the guards can find wrong with a plan."""

    INCOMPLETE_TASK = "incomplete_task"
    DUPLICATE_ID = "duplicate_id"
    CATCH_ALL = "catch_all_scope"
    DUPLICATE_SCOPE = "duplicate_scope"
    OVERLAP = "overlapping_scopes"
    UNKNOWN_DEPENDENCY = "unknown_dependency"
    LATER_DEPENDENCY = "later_dependency"
    CYCLE = "dependency_cycle"
    GREENFIELD_SPLIT = "split_of_empty_repository"


class Finding(Frozen):
    """One fault of a plan, found by code, with the tasks it concerns."""

    kind: FindingKind
    message: str
    tasks: tuple[str, ...] = ()


class Plan(Frozen):
    """How the ticket is split, and what the guards say of it. `reduced` says why it was cut to one task, if it was."""

    tasks: tuple[SubTask, ...]
    greenfield: bool = False
    findings: tuple[Finding, ...] = ()
    answered: tuple[str, ...] = ()
    """Objections of the previous refusal that this plan answers."""
    reduced: str = ""


class GreenfieldSpec(Frozen):
    """What an empty repository gets first. `applies` is False, and the rest empty, where there is a base."""

    applies: bool
    entry_point: str = ""
    manifest: str = ""
    tree: tuple[str, ...] = ()
    technology: str = ""
    test_command: str = ""
    """Content wanted for `.devcontainer/test.sh`."""


class PlanDocument(Frozen):
    """The Docs page of the ticket. `applies` is False when documents are off."""

    applies: bool
    url: str = ""
    document_id: str = ""


class ApprovedPlan(Frozen):
    """The plan that goes on. `overridden` says that the architect still objected when the budget was spent."""

    plan: Plan
    spec: GreenfieldSpec
    overridden: bool = False
    concerns: tuple[str, ...] = ()
    approved_by: str = ""
    """Who approved it where plans wait for a human, else ""."""


class ArchitectureReview(Frozen):
    """The architect's verdict on a split; findings of the guards make it `request_changes` whatever the model says."""

    verdict: ReviewVerdict
