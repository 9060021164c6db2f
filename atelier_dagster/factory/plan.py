"""Plans. Belongs here: sub-tasks, guards that check a plan by code, waves. Not here: what a model says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import combinations
from typing import Any, cast

from pydantic import Field, ValidationError

from atelier_dagster.factory.answers import clean, last_object, texts
from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.factory.scopes import fault, in_scope, is_catch_all, normalized, overlap
from atelier_dagster.factory.ticket import Frozen, Ticket
from atelier_dagster.factory.verdict import ReviewVerdict

__all__ = [
    "ApprovedPlan",
    "ArchitectureReview",
    "Finding",
    "FindingKind",
    "GreenfieldSpec",
    "Plan",
    "PlanDocument",
    "SubTask",
    "check_plan",
    "in_scope",
    "parse_answered",
    "parse_greenfield",
    "parse_plan",
    "reduce_to_one",
    "waves",
]

_TASKS = 16
_GLOBS = 32
_LINE = 200
_TEXT = 8_000
_EVERYTHING = "**"


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
    problem: str = ""
    """Why there is no design, where the designer's answer could not be read."""


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


# ------------------------------------------------------------------------------------------------------ guards


def check_plan(tasks: Sequence[SubTask], *, greenfield: bool) -> tuple[Finding, ...]:
    """Everything wrong with a split that code can tell. Empty: nothing."""
    return tuple(
        finding
        for guard in (_incomplete, _duplicate_ids, _catch_alls, _overlaps, _dependencies, _cycles)
        for finding in guard(tasks)
    ) + (_greenfield_split(tasks) if greenfield else ())


def _incomplete(tasks: Sequence[SubTask]) -> Iterator[Finding]:
    if not tasks:
        yield Finding(kind=FindingKind.INCOMPLETE_TASK, message="the plan has no task")
    for number, task in enumerate(tasks, 1):
        lacks = [name for name in ("id", "title", "scope") if not getattr(task, name)]
        if lacks:
            message = f"task {task.id or f'number {number}'} has no {', no '.join(lacks)}"
            yield Finding(kind=FindingKind.INCOMPLETE_TASK, message=message, tasks=(task.id,))
        for glob in task.scope:
            if why := fault(glob):
                message = f"task {task.id}: the scope {glob!r} {why}"
                yield Finding(kind=FindingKind.INCOMPLETE_TASK, message=message, tasks=(task.id,))


def _duplicate_ids(tasks: Sequence[SubTask]) -> Iterator[Finding]:
    ids = [task.id for task in tasks if task.id]
    for id_ in dict.fromkeys(id_ for id_ in ids if ids.count(id_) > 1):
        message = f"{ids.count(id_)} tasks have the id {id_}"
        yield Finding(kind=FindingKind.DUPLICATE_ID, message=message, tasks=(id_,))


def _catch_alls(tasks: Sequence[SubTask]) -> Iterator[Finding]:
    for task in tasks if len(tasks) > 1 else ():
        for glob in task.scope:
            if not fault(glob) and is_catch_all(glob):
                message = f"task {task.id}: the scope {glob!r} takes in everything, other tasks' files too"
                yield Finding(kind=FindingKind.CATCH_ALL, message=message, tasks=(task.id,))


def _overlaps(tasks: Sequence[SubTask]) -> Iterator[Finding]:
    """The same glob claimed by two tasks; else the first pair of globs of two tasks that can match one path."""
    for one, other in combinations(tasks, 2):
        left, right = _usable(one), _usable(other)
        if same := [glob for glob in left if glob in right]:
            message = f"tasks {one.id} and {other.id} both claim {same[0]!r}"
            yield Finding(kind=FindingKind.DUPLICATE_SCOPE, message=message, tasks=(one.id, other.id))
        elif meeting := next(((a, b) for a in left for b in right if overlap(a, b)), None):
            message = f"tasks {one.id} and {other.id}: {meeting[0]!r} and {meeting[1]!r} can match the same path"
            yield Finding(kind=FindingKind.OVERLAP, message=message, tasks=(one.id, other.id))


def _usable(task: SubTask) -> list[str]:
    """Globs that name something, in one spelling; catch-alls are findings of their own."""
    return [normalized(glob) for glob in task.scope if not fault(glob) and not is_catch_all(glob)]


def _dependencies(tasks: Sequence[SubTask]) -> Iterator[Finding]:
    ids = [task.id for task in tasks]
    for position, task in enumerate(tasks):
        for needed in task.depends_on:
            if needed not in ids:
                kind, message = FindingKind.UNKNOWN_DEPENDENCY, f"task {task.id} depends on {needed}, which is no task"
            elif needed not in ids[:position]:
                kind, message = FindingKind.LATER_DEPENDENCY, f"task {task.id} depends on {needed}, which comes later"
            else:
                continue
            yield Finding(kind=kind, message=message, tasks=(task.id, needed))


def _cycles(tasks: Sequence[SubTask]) -> Iterator[Finding]:
    if circle := _layers(tasks)[1]:
        names = tuple(task.id for task in circle)
        message = f"tasks {', '.join(names)} wait for each other"
        yield Finding(kind=FindingKind.CYCLE, message=message, tasks=names)


def _greenfield_split(tasks: Sequence[SubTask]) -> tuple[Finding, ...]:
    if len(tasks) < 2:
        return ()
    message = "the repository is empty: its first change is one task, with one entry point and one manifest"
    return (Finding(kind=FindingKind.GREENFIELD_SPLIT, message=message, tasks=tuple(task.id for task in tasks)),)


# ------------------------------------------------------------------------------------------------------- waves


def waves(tasks: Sequence[SubTask]) -> tuple[tuple[SubTask, ...], ...]:
    """Tasks in groups that can run at the same time, each after what it depends on.

    Raises `InvalidInput` when tasks wait for each other or for one that does not exist.
    """
    layers, rest = _layers(tasks)
    unknown = sorted({needed for task in tasks for needed in task.depends_on} - {task.id for task in tasks})
    if rest or unknown:
        names = ", ".join([*(task.id for task in rest), *unknown])
        raise InvalidInput(f"these tasks cannot be put in order: {names}", fix="mend depends_on in the plan")
    return layers


def _layers(tasks: Sequence[SubTask]) -> tuple[tuple[tuple[SubTask, ...], ...], tuple[SubTask, ...]]:
    """Waves, and the tasks that none can take because they wait for each other. Unknown dependencies are ignored."""
    known = {task.id for task in tasks}
    done: set[str] = set()
    layers: list[tuple[SubTask, ...]] = []
    rest = tuple(tasks)
    while ready := tuple(task for task in rest if set(task.depends_on) & known <= done):
        layers.append(ready)
        done |= {task.id for task in ready}
        rest = tuple(task for task in rest if task not in ready)
    return tuple(layers), rest


def reduce_to_one(plan: Plan | None, ticket: Ticket, why: str) -> Plan:
    """One task for the whole ticket, where a split cannot be used; `why` stays with the plan."""
    tasks = plan.tasks if plan else ()
    parts = [f"{task.title}\n{task.description}".strip() for task in tasks]
    devcontainers = {task.devcontainer for task in tasks}
    task = SubTask(
        id="all",
        title=clean(ticket.title, _LINE) or "the whole ticket",
        description=clean("\n\n".join(parts), _TEXT),
        scope=(_EVERYTHING,),
        devcontainer=devcontainers.pop() if len(devcontainers) == 1 else "",
    )
    return Plan(
        tasks=(task,),
        greenfield=plan.greenfield if plan else ticket.is_greenfield,
        answered=plan.answered if plan else (),
        reduced=why,
    )


# ----------------------------------------------------------------------------------------------------- answers


def parse_plan(text: str) -> tuple[SubTask, ...]:
    """The tasks in a planner's answer; what a task lacks is for `check_plan`. Raises `InvalidInput` if unreadable."""
    answer = last_object(text, ("tasks",))
    items = answer.get("tasks") if answer else None
    if not isinstance(items, list) or not items:
        raise InvalidInput("the planner's answer holds no list of tasks", fix="plan again")
    tasks = cast("list[object]", items)
    if len(tasks) > _TASKS:
        raise InvalidInput(f"the plan has {len(tasks)} tasks, at most {_TASKS} are accepted", fix="plan again")
    return tuple(_task(item, number) for number, item in enumerate(tasks, 1))


def parse_answered(text: str) -> tuple[str, ...]:
    """How a planner's answer says it met each objection; empty where it does not say."""
    answer = last_object(text, ("tasks",))
    return texts(answer.get("answered"), 50, 2_000) if answer else ()


def _task(item: object, number: int) -> SubTask:
    if not isinstance(item, dict):
        raise InvalidInput(f"task number {number} of the plan is not an object", fix="plan again")
    fields = cast("Mapping[str, Any]", item)
    scope = texts(fields.get("scope"), _GLOBS + 1, 600)
    if len(scope) > _GLOBS:
        raise InvalidInput(f"task number {number} has more than {_GLOBS} globs", fix="plan again with wider globs")
    try:
        return SubTask(
            id=_line(fields, "id", 60),
            title=_line(fields, "title"),
            description=_line(fields, "description", _TEXT),
            scope=scope,
            role=_line(fields, "role", 60) or "developer",
            devcontainer=_line(fields, "devcontainer"),
            depends_on=texts(fields.get("depends_on"), _TASKS, 60),
            service_port=fields.get("service_port") or None,
            service_command=_line(fields, "service_command", 1_000),
            service_health=_line(fields, "service_health", 1_000),
            contract_path=_line(fields, "contract_path"),
        )
    except ValidationError as error:
        raise InvalidInput(f"task number {number} has no valid service_port (1-65535)", fix="plan again") from error


def _line(fields: Mapping[str, Any], name: str, length: int = _LINE) -> str:
    value: object = fields.get(name)
    return clean(str(value), length) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def parse_greenfield(text: str) -> GreenfieldSpec:
    """What a greenfield designer answered. Raises `InvalidInput` if unreadable."""
    answer = last_object(text, ("entry_point",))
    spec = GreenfieldSpec(
        applies=True,
        entry_point=_line(answer or {}, "entry_point"),
        manifest=_line(answer or {}, "manifest"),
        tree=texts((answer or {}).get("tree"), 200, _LINE),
        technology=_line(answer or {}, "technology", 1_000),
        test_command=_line(answer or {}, "test_command", 4_000),
    )
    if not spec.entry_point or not spec.test_command:
        raise InvalidInput("the greenfield design names no entry point or no test command", fix="design again")
    return spec
