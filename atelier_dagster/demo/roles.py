"""The scripted roles that only talk: analyst, planner, designer, reviewers. Those with tools are in `workers`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from atelier_dagster.demo.conversation import Conversation, Reply
from atelier_dagster.demo.features import Task, recognise, wanted_by_somebody_never_content
from atelier_dagster.demo.workers import develop, examine

_CATCH_ALL = {"**", "**/*", "*"}
_DANGEROUS = re.compile(
    r"(?m)^\+.*(\beval\(|shell=True|verify=False|(password|secret|api_key)\s*=\s*[\"'][^\"']+[\"'])"
)
_UNFIT = re.compile(r"(?m)^\+.*(:latest\b|--privileged|chmod -R 777|docker\.sock)")
_UNFINISHED = re.compile(r"(?m)^\+.*\b(breakpoint\(\)|pdb\.set_trace|FIXME)")


def answer(talk: Conversation) -> Reply:
    """What the script says next, from nothing but the conversation."""
    role = _ROLES.get(talk.role)
    if role is not None:
        return role(talk)
    if talk.system.lower().startswith("you are a title generator"):
        return Reply("A change for a ticket")
    return Reply("This is a script for a demo. It plays the roles of a software team and knows nothing else.")


def _analyst(talk: Conversation) -> Reply:
    features = recognise(talk.wish)
    if not features:
        criteria = ("What the ticket asks for can be seen in the running program", "What worked before still works")
        return _json(job_story=f"When I use it, I want what the ticket asks for: {_title(talk)}", criteria=criteria)
    criteria = tuple(criterion for feature in features for criterion in feature.criteria)
    return _json(job_story=features[0].story, criteria=criteria[:5])


def _planner(talk: Conversation) -> Reply:
    features = recognise(talk.wish)
    objections = [line.removeprefix("- ") for text in talk.data("objections") for line in text.splitlines()]
    tasks = [
        task for feature in features for task in (feature.tasks if objections else feature.careless or feature.tasks)
    ]
    if not tasks:
        tasks = [Task("change", _title(talk), ("**",))]
    elif len(tasks) > 1 and any(_CATCH_ALL.intersection(task.scope) for task in tasks):
        scope = ("**",)
        tasks = [Task("all", "; ".join(task.title for task in tasks), scope)]
    described: list[dict[str, object]] = [
        {"id": t.id, "title": t.title, "description": f"{t.title}, with tests.", "scope": t.scope, "depends_on": ()}
        for t in tasks
    ]
    return _json(tasks=described, answered=objections)


def _designer(talk: Conversation) -> Reply:
    files = {path for feature in recognise(talk.wish) for path in feature.files()}
    if "app.py" not in files:
        return _json(
            entry_point="main.py",
            manifest="pyproject.toml",
            tree=["main.py", "pyproject.toml", ".devcontainer/test.sh"],
            technology="Python, standard library only",
            test_command="python3 -m unittest discover",
        )
    return _json(
        entry_point="app.py",
        manifest="pyproject.toml",
        tree=sorted(files),
        technology="Python, standard library only: http.server and sqlite3",
        test_command="python3 -m unittest discover -s tests -v",
    )


def _architect(talk: Conversation) -> Reply:
    scopes: list[set[str]] = []
    for task in talk.data("task"):
        found = re.search(r"(?m)^scope: (.*)$", task)
        scopes.append(set(found.group(1).split(", ")) if found else set())
    shared = {glob for i, scope in enumerate(scopes) for other in scopes[i + 1 :] for glob in scope & other}
    comments = [f"two tasks may change {glob}: give each its own files" for glob in sorted(shared)]
    comments += [finding for finding in talk.data("finding") if finding not in comments]
    return _verdict(comments)


def _code_reviewer(talk: Conversation) -> Reply:
    if wanted_by_somebody_never_content(talk.wish):
        return _verdict(["this is not yet as good as it could be: go through it once more"])
    return _verdict([f"left over from working: {line}" for line in _added(talk, _UNFINISHED)])


def _security_reviewer(talk: Conversation) -> Reply:
    return _verdict([f"dangerous: {line}" for line in _added(talk, _DANGEROUS)])


def _operations_reviewer(talk: Conversation) -> Reply:
    return _verdict([f"not fit for operation: {line}" for line in _added(talk, _UNFIT)])


def _added(talk: Conversation, pattern: re.Pattern[str]) -> list[str]:
    return [found.group().lstrip("+").strip()[:200] for diff in talk.data("diff") for found in pattern.finditer(diff)][
        :20
    ]


def _title(talk: Conversation) -> str:
    found = re.search(r"(?m)^Title: (.+)$", talk.wish)
    return found.group(1).strip()[:200] if found else "the ticket"


def _verdict(comments: Sequence[str]) -> Reply:
    return _json(verdict="request_changes" if comments else "approve", comments=list(comments))


def _json(**value: object) -> Reply:
    return Reply(json.dumps(value, ensure_ascii=False, indent=1))


_ROLES: Mapping[str, Callable[[Conversation], Reply]] = {
    "analyst": _analyst,
    "planner": _planner,
    "greenfield designer": _designer,
    "architect": _architect,
    "code reviewer": _code_reviewer,
    "security reviewer": _security_reviewer,
    "operations reviewer": _operations_reviewer,
    "developer": develop,
    "developer (rework)": develop,
    "qa engineer": examine,
}

NAMES = frozenset(_ROLES)
"""Roles that the script plays."""
