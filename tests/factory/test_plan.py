"""Guards of a plan, waves, scopes: decided by code."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.factory.plan import (
    FindingKind,
    Plan,
    SubTask,
    check_plan,
    in_scope,
    parse_greenfield,
    parse_plan,
    reduce_to_one,
    waves,
)
from atelier_dagster.factory.scopes import fault, overlap
from atelier_dagster.factory.ticket import RepoRef, Ticket, TicketKey

TICKET = Ticket(
    key=TicketKey(repo=RepoRef(tracker="local", owner="a", name="b"), number=1),
    title="Add a shop",
    body="",
    author="bob",
    base_branch="trunk",
    root_entries=(),
)


def task(id_: str, *scope: str, after: tuple[str, ...] = (), title: str = "t") -> SubTask:
    return SubTask(id=id_, title=title, scope=scope, depends_on=after)


K = FindingKind


@pytest.mark.parametrize(
    ("tasks", "kinds"),
    [
        ((task("a", "src/"), task("b", "docs/")), []),
        ((task("a", "**"),), []),
        ((), [K.INCOMPLETE_TASK]),
        ((task("", "a"),), [K.INCOMPLETE_TASK]),
        ((task("a", "a", title=""),), [K.INCOMPLETE_TASK]),
        ((task("a"),), [K.INCOMPLETE_TASK]),
        ((task("a", "../x"),), [K.INCOMPLETE_TASK]),
        ((task("a", "!x"),), [K.INCOMPLETE_TASK]),
        ((task("a", "x/"), task("a", "y/")), [K.DUPLICATE_ID]),
        ((task("a", "**"), task("b", "x/")), [K.CATCH_ALL]),
        ((task("a", "."), task("b", "x/")), [K.CATCH_ALL]),
        ((task("a", "**/*"), task("b", "x/")), [K.CATCH_ALL]),
        ((task("a", "x/a.py"), task("b", "x/a.py")), [K.DUPLICATE_SCOPE]),
        ((task("a", "x/a.py"), task("b", "./x//a.py")), [K.DUPLICATE_SCOPE]),
        ((task("a", "src/**"), task("b", "src/api/**")), [K.OVERLAP]),
        ((task("a", "src"), task("b", "src/x.py")), [K.OVERLAP]),
        ((task("a", "src/"), task("b", "*.py")), [K.OVERLAP]),
        ((task("a", "src/*.py"), task("b", "src/test_*")), [K.OVERLAP]),
        ((task("a", "x", after=("z",)), task("b", "y")), [K.UNKNOWN_DEPENDENCY]),
        ((task("a", "x", after=("b",)), task("b", "y")), [K.LATER_DEPENDENCY]),
        ((task("a", "x", after=("a",)),), [K.LATER_DEPENDENCY, K.CYCLE]),
        ((task("a", "x", after=("b",)), task("b", "y", after=("a",))), [K.LATER_DEPENDENCY, K.CYCLE]),
    ],
)
def test_findings(tasks: tuple[SubTask, ...], kinds: list[FindingKind]) -> None:
    assert [finding.kind for finding in check_plan(tasks, greenfield=False)] == kinds


def test_empty_repository_gets_one_task() -> None:
    tasks = (task("a", "src/"), task("b", "docs/"))
    assert [finding.kind for finding in check_plan(tasks, greenfield=True)] == [K.GREENFIELD_SPLIT]
    assert check_plan(tasks[:1], greenfield=True) == ()


def test_literal_brackets_are_names() -> None:
    assert in_scope("app/[id]/page.tsx", ["app/[id]/page.tsx"])
    assert not overlap("app/[id]/page.tsx", "app/d/page.tsx")


pieces = st.lists(st.sampled_from(["a", "b", "*", "?", "[", "]", ".", "**"]), min_size=1, max_size=4).map("".join)
components = pieces | st.just("**") | st.sampled_from(["a", "b", "ab"])
globs = st.tuples(
    st.sampled_from(["", "/", "./", "**/"]),
    st.lists(components, min_size=1, max_size=4).map("/".join),
    st.sampled_from(["", "/", "/**", "/*"]),
).map("".join)
globs = globs.filter(lambda glob: not fault(glob))
path_names = st.text(alphabet="ab.[]", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
paths = st.lists(path_names, min_size=1, max_size=4).map("/".join)


@settings(max_examples=250, deadline=None)
@given(globs, globs, st.lists(paths, min_size=5, max_size=30))
def test_globs_with_a_common_path_overlap(one: str, other: str, samples: list[str]) -> None:
    for path in samples:
        if in_scope(path, [one]) and in_scope(path, [other]):
            assert overlap(one, other)
        if in_scope(path, [one]):
            assert overlap(one, f"/{path}")
    assert overlap(one, other) == overlap(other, one)


def test_waves_put_consumers_after_producers() -> None:
    tasks = (task("a", "a"), task("b", "b"), task("c", "c", after=("a",)), task("d", "d", after=("c", "b")))
    assert [[one.id for one in wave] for wave in waves(tasks)] == [["a", "b"], ["c"], ["d"]]


@pytest.mark.parametrize("after", ["a", "b", "z"])
def test_waves_of_an_impossible_order_are_refused(after: str) -> None:
    with pytest.raises(InvalidInput):
        waves((task("a", "a", after=(after,)), task("b", "b", after=("a",))))


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.lists(st.sampled_from("abcde"), max_size=3)), max_size=6))
def test_waves_hold_every_task_once_or_are_refused(drawn: list[tuple[str, list[str]]]) -> None:
    tasks = [task(id_, f"{number}/", after=tuple(after)) for number, (id_, after) in enumerate(drawn)]
    check_plan(tasks, greenfield=False)
    try:
        found = waves(tasks)
    except InvalidInput:
        return
    done: set[str] = set()
    for wave in found:
        assert all(set(one.depends_on) <= done for one in wave)
        done |= {one.id for one in wave}
    assert sorted(one.scope for wave in found for one in wave) == sorted(one.scope for one in tasks)


def test_reduced_plan_is_one_sound_task_that_says_why() -> None:
    plan = Plan(tasks=(task("a", "**", title="first"), task("b", "**", title="second")))
    for given_plan in (plan, None):
        reduced = reduce_to_one(given_plan, TICKET, "the scopes overlap")
        assert (len(reduced.tasks), reduced.reduced) == (1, "the scopes overlap")
        assert check_plan(reduced.tasks, greenfield=True) == ()
    assert "second" in reduce_to_one(plan, TICKET, "why").tasks[0].description


def test_plan_is_read() -> None:
    answer = {
        "tasks": [{"id": "a", "title": "A", "scope": ["src/"], "depends_on": [], "service_port": 8080}, {"id": 2}]
    }
    first, second = parse_plan(f"Here:\n```json\n{json.dumps(answer)}\n```")
    assert (first.id, first.scope, first.service_port) == ("a", ("src/",), 8080)
    assert (second.id, second.title, second.scope) == ("2", "", ())


@pytest.mark.parametrize(
    "answer", ["", "prose", '{"tasks": []}', '{"tasks": [1]}', '{"tasks": 3}', '{"tasks":[{"service_port":99999}]}']
)
def test_unreadable_plan_is_refused(answer: str) -> None:
    with pytest.raises(InvalidInput):
        parse_plan(answer)


def test_plan_of_too_many_tasks_is_refused() -> None:
    with pytest.raises(InvalidInput):
        parse_plan(json.dumps({"tasks": [{"id": str(n)} for n in range(100)]}))


def test_greenfield_design_is_read_or_refused() -> None:
    spec = parse_greenfield('{"entry_point":"app.py","manifest":"pyproject.toml","tree":["app.py"],"test_command":"t"}')
    assert (spec.applies, spec.entry_point, spec.tree) == (True, "app.py", ("app.py",))
    with pytest.raises(InvalidInput):
        parse_greenfield('{"entry_point":"app.py"}')
