"""One branch out of all deliveries: on the base as it is now, nothing pushed lost, conflicts named."""

from __future__ import annotations

from atelier_dagster.delivery import integrate
from atelier_dagster.factory.change import Integration, TaskChange
from atelier_dagster.ports import GitRemote
from tests.support.delivery import Setting


def change(branch: str, base: str, head: str) -> TaskChange:
    return TaskChange(task_id=branch, workshop=branch, branch=branch, attempt_id=branch, base=base, head=head)


async def deliver(setting: Setting, name: str, files: dict[str, str], start: str = "") -> TaskChange:
    start = start or setting.base
    setting.work.branch(name, start)
    head = setting.work.commit(name, dict(files))
    setting.work.git("checkout", "-q", "trunk")
    await setting.host.fetch(GitRemote(str(setting.work.path)), [name])
    return change(name, start, head)


async def joined(
    setting: Setting, *changes: TaskChange, base_now: str | None = None, pushed: str = "", start: str | None = None
) -> Integration:
    return await integrate(
        setting.host,
        branch="atelier/1",
        base_branch="trunk",
        start=setting.base if start is None else start,
        base_now=setting.base if base_now is None else base_now,
        pushed=pushed,
        changes=changes,
    )


async def advance(setting: Setting, files: dict[str, str]) -> str:
    tip = setting.work.commit("meanwhile", dict(files))
    await setting.host.fetch(GitRemote(str(setting.work.path)), ["trunk"])
    return tip


async def test_deliveries_are_joined_the_same_way_each_time(setting: Setting) -> None:
    one = await deliver(setting, "one", {"one": "1"})
    two = await deliver(setting, "two", {"two": "2"})
    idle = change("idle", setting.base, setting.base)
    found = await joined(setting, one, two, idle)
    assert found == await joined(setting, one, two, idle)
    assert (found.merged, found.conflicts, found.base) == (("one", "two"), (), setting.base)
    assert set((await setting.host.diff(found.base, found.head)).paths) == {"one", "two"}
    assert await setting.host.ref("refs/heads/atelier/1") == found.head


async def test_one_delivery_is_its_own_head(setting: Setting) -> None:
    one = await deliver(setting, "one", {"one": "1"})
    assert (await joined(setting, one)).head == one.head


async def test_a_conflicting_delivery_is_left_out_and_named(setting: Setting) -> None:
    one = await deliver(setting, "one", {"src/a": "one\n"})
    two = await deliver(setting, "two", {"src/a": "two\n"})
    found = await joined(setting, one, two)
    assert (found.head, found.merged, found.conflicts) == (one.head, ("one",), ("two",))


async def test_nothing_delivered_changes_nothing(setting: Setting) -> None:
    found = await joined(setting, change("one", setting.base, setting.base))
    assert (found.head, found.merged) == (setting.base, ())


async def test_a_base_that_moved_is_in_the_head(setting: Setting) -> None:
    one = await deliver(setting, "one", {"one": "1"})
    clash = await deliver(setting, "clash", {"src/a": "clash\n"})
    tip = await advance(setting, {"src/a": "moved\n"})
    found = await joined(setting, one, clash, base_now=tip)
    assert (found.base, found.merged, found.conflicts) == (tip, ("one",), ("clash",))
    assert (await setting.host.diff(tip, found.head)).paths == ("one",)


async def test_what_was_pushed_stays_and_the_base_comes_in(setting: Setting) -> None:
    one = await deliver(setting, "one", {"one": "1"})
    first = await joined(setting, one)
    tip = await advance(setting, {"base": "moved\n"})
    rework = await deliver(setting, "rework", {"one": "better"}, first.head)
    found = await joined(setting, rework, base_now=tip, pushed=first.head)
    for commit in (first.head, rework.head, tip):
        assert await setting.host.contains(found.head, commit)
    assert found.base == tip


async def test_a_base_that_conflicts_is_named_and_left_out(setting: Setting) -> None:
    one = await deliver(setting, "one", {"src/a": "one\n"})
    tip = await advance(setting, {"src/a": "moved\n"})
    found = await joined(setting, base_now=tip, pushed=one.head)
    assert (found.head, found.base, found.conflicts) == (one.head, setting.base, ("trunk",))


async def test_an_empty_repository_starts_with_the_delivery(setting: Setting) -> None:
    one = await deliver(setting, "one", {"one": "1"})
    first = change("one", "", one.head)
    found = await joined(setting, first, base_now="", start="")
    assert (found.head, found.base, found.merged) == (one.head, "", ("one",))
    nothing = await joined(setting, change("one", "", ""), base_now="", start="")
    assert (nothing.head, nothing.base) == ("", "")
