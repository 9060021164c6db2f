"""The host's repository with real git: fetch, merge, diff and push, whatever the files are called."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atelier_dagster.delivery import HostRepository
from atelier_dagster.factory.errors import InvalidInput, NotFound
from atelier_dagster.gitio import GitOutputTooLarge, PushRejected
from atelier_dagster.ports import GitRemote
from tests.support.repositories import Checkout, bare, checkout, git

AWKWARD = [
    "with space",
    'quo"te',
    "tab\there",
    "new\nline",
    "café",
    "日本",
    "-x",
    "a'b",
    "back\\slash",
    "$(touch pwned)",
]


@pytest.fixture
def work(tmp_path: Path) -> Checkout:
    return checkout(tmp_path / "work", "trunk")


@pytest.fixture
def host(tmp_path: Path) -> HostRepository:
    return HostRepository(tmp_path / "host" / "shop.git")


def remote(repository: Checkout | Path) -> GitRemote:
    return GitRemote(url=str(repository.path if isinstance(repository, Checkout) else repository))


async def take(host: HostRepository, work: Checkout, *branches: str) -> None:
    """Everything of a checkout's branches."""
    await host.fetch(remote(work), branches)


async def test_fetch_says_what_each_branch_is_and_gets_only_what_is_new(host: HostRepository, work: Checkout) -> None:
    first = work.commit("one", {"a": "1"})
    assert await host.fetch(remote(work), ["trunk", "absent"]) == {"trunk": first, "absent": None}
    second = work.commit("two", {"a": "2"})
    assert await host.fetch(remote(work), ["trunk"]) == {"trunk": second}
    assert await host.commits("", second) == (first, second)


async def test_fetch_of_known_tips_does_not_even_ask(host: HostRepository, work: Checkout, tmp_path: Path) -> None:
    tip = work.commit("one", {"a": "1"})
    await host.fetch(remote(work), {"trunk": tip})
    gone = GitRemote(url=str(tmp_path / "nowhere"))
    assert await host.fetch(gone, {"trunk": tip}) == {"trunk": tip}
    assert await host.fetch(gone, []) == {}


async def test_a_tag_named_like_the_branch_is_never_taken_for_it(host: HostRepository, work: Checkout) -> None:
    old = work.commit("old", {"a": "1"})
    work.git("tag", "trunk")
    new = work.commit("new", {"a": "2"})
    assert await host.fetch(remote(work), ["trunk"]) == {"trunk": new}
    assert old != new


async def test_a_branch_named_like_an_option_is_a_branch(host: HostRepository, work: Checkout, tmp_path: Path) -> None:
    tip = work.commit("one", {"a": "1"})
    work.git("update-ref", "refs/heads/-x", tip)
    assert await host.fetch(remote(work), ["-x"]) == {"-x": tip}
    target = bare(tmp_path / "target.git")
    assert await host.push(remote(target), "--force", tip)
    assert git(target, "rev-parse", "refs/heads/--force") == tip


@pytest.mark.parametrize(
    "name", ["a b", "a..b", "a~1", "HEAD", "", "x.lock", "a/.b", "a//b", "@{u}", "a:b", "a*", "a\n"]
)
async def test_names_that_git_would_read_otherwise_are_refused(host: HostRepository, work: Checkout, name: str) -> None:
    work.commit("one")
    with pytest.raises(InvalidInput):
        await host.fetch(remote(work), [name])


async def test_an_empty_repository_has_no_branches(host: HostRepository, tmp_path: Path) -> None:
    assert await host.fetch(remote(bare(tmp_path / "empty.git")), ["main"]) == {"main": None}
    assert await host.root_entries("") == ()


async def test_many_processes_may_make_the_repository(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "x.git"
    await asyncio.gather(*(HostRepository(path).ensure() for _ in range(8)))
    assert git(path, "rev-parse", "--is-bare-repository") == "true"


# ------------------------------------------------------------------------------------------------------------- merge


async def test_branches_are_merged_one_after_the_other(host: HostRepository, work: Checkout) -> None:
    base = work.commit("base", {"a": "1\n", "b": "1\n"})
    heads: dict[str, str] = {}
    for name, files in {"one": {"a": "2\n"}, "two": {"b": "2\n"}, "clash": {"a": "3\n"}}.items():
        work.branch(name, base)
        heads[name] = work.commit(name, dict(files))
    await take(host, work, *heads)
    merged = await host.merge(heads, base)
    assert merged.merged == ("one", "two")
    assert merged.conflicts == {"clash": ("a",)}
    assert await host.read_file(merged.head, "b") == b"2\n"
    assert await host.contains(merged.head, heads["one"])
    assert await host.contains(merged.head, heads["two"])
    assert not await host.contains(merged.head, heads["clash"])


async def test_the_same_merge_gives_the_same_commit(host: HostRepository, work: Checkout, tmp_path: Path) -> None:
    base = work.commit("base", {"a": "1\n"})
    work.branch("one", base)
    one = work.commit("one", {"b": "2\n"})
    work.branch("two", base)
    two = work.commit("two", {"c": "2\n"})
    other = HostRepository(tmp_path / "other.git")
    for repository in (host, other):
        await take(repository, work, "one", "two")
    first = await host.merge({"one": one, "two": two}, base)
    assert first == await host.merge({"one": one, "two": two}, base)
    assert first == await other.merge({"one": one, "two": two}, base)
    again = await host.merge({"one": one, "two": two}, first.head)
    assert again.head == first.head


async def test_a_merge_needs_no_identity_of_the_machine_and_is_no_conflict_without(
    host: HostRepository, work: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = work.commit("base", {"a": "1\n"})
    work.branch("one", base)
    one = work.commit("one", {"b": "2\n"})
    work.git("checkout", "-q", "trunk")
    trunk = work.commit("more", {"c": "2\n"})
    await take(host, work, "one", "trunk")
    for name in ("HOME", "EMAIL", "USER", "LOGNAME", "GIT_AUTHOR_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.delenv(name, raising=False)
    merged = await host.merge({"one": one}, trunk)
    assert merged.merged == ("one",)
    assert git(host.path, "show", "-s", "--format=%an <%ae> %cn", merged.head) == (
        "Atelier <atelier@atelier.invalid> Atelier"
    )


async def test_merge_into_nothing_starts_the_history(host: HostRepository, work: Checkout) -> None:
    head = work.commit("first", {"a": "1"})
    await take(host, work, "trunk")
    merged = await host.merge({"trunk": head}, "")
    assert (merged.head, merged.conflicts) == (head, {})


async def test_attributes_of_a_change_run_no_driver_and_decide_no_merge(
    host: HostRepository, work: Checkout, tmp_path: Path
) -> None:
    base = work.commit("base", {"a": "1\n"})
    flag = tmp_path / "ran"
    heads: dict[str, str] = {}
    for name in ("one", "two"):
        work.branch(name, base)
        heads[name] = work.commit(name, {"a": f"{name}\n", ".gitattributes": "* merge=evil filter=evil diff=evil\n"})
    await take(host, work, "one", "two")
    git(host.path, "config", "core.bare", "true")
    merged = await host.merge(heads, base)
    assert merged.conflicts == {"two": ("a",)}
    assert not flag.exists()


async def test_update_with_base_brings_it_in_or_says_what_conflicts(host: HostRepository, work: Checkout) -> None:
    base = work.commit("base", {"a": "1\n"})
    work.branch("one", base)
    head = work.commit("one", {"b": "2\n"})
    work.git("checkout", "-q", "trunk")
    moved = work.commit("moved", {"c": "2\n"})
    clash = work.commit("clash", {"b": "3\n"})
    await take(host, work, "one", "trunk")
    assert (await host.update_with_base(head, base)).head == head
    updated = await host.update_with_base(head, moved, "trunk")
    assert updated.merged == ("trunk",)
    assert await host.contains(updated.head, moved)
    failed = await host.update_with_base(head, clash, "trunk")
    assert (failed.head, failed.conflicts) == (head, {"trunk": ("b",)})


# -------------------------------------------------------------------------------------------------------------- diff


async def test_every_kind_of_change_is_in_the_diff(host: HostRepository, work: Checkout) -> None:
    long = "".join(f"line {n}\n" for n in range(50))
    work.write("mode.sh", "echo\n")
    base = work.commit(
        "base", {"old name.txt": long, "crlf": "a\r\nb\r\n", "gone": "gone\n", "bin": b"\0\1\2", "n": "x"}
    )
    work.path.joinpath("old name.txt").rename(work.path / "new name.txt")
    work.path.joinpath("gone").unlink()
    work.path.joinpath("mode.sh").chmod(0o755)
    head = work.commit("all", {"crlf": "a\r\nc\r\n", "bin": b"\0\1\3", "n": "y", "empty": "", "caf\u00e9": "x\n"})
    await take(host, work, "trunk")
    diff = await host.diff(base, head)
    expected = {"old name.txt", "new name.txt", "crlf", "gone", "bin", "n", "mode.sh", "empty", "café"}
    assert set(diff.paths) == expected
    assert diff.files == len(expected) - 1
    assert diff.binary == ("bin",)
    assert b"rename from old name.txt" in diff.text
    assert b"old mode 100644\nnew mode 100755" in diff.text
    assert b"\\ No newline at end of file" in diff.text
    assert b"-b\r\n+c\r\n" in diff.text
    assert "b/café".encode() in diff.text
    assert (diff.insertions, diff.deletions) == (3, 3)


async def test_awkward_names_come_through_whole(host: HostRepository, work: Checkout) -> None:
    base = work.commit("base", {"README": "x"})
    head = work.commit("awkward", {f"d/{name}": "x\n" for name in AWKWARD})
    await take(host, work, "trunk")
    assert set((await host.diff(base, head)).paths) == {f"d/{name}" for name in AWKWARD}
    for name in AWKWARD:
        assert await host.read_file(head, f"d/{name}") == b"x\n"


async def test_a_name_that_is_no_text_is_shown_with_its_bytes(host: HostRepository, work: Checkout) -> None:
    base = work.commit("base", {"README": "x"})
    (work.path / "lat\udce9in").write_text("x")
    head = work.commit("latin")
    await take(host, work, "trunk")
    assert (await host.diff(base, head)).paths == ("lat\\xe9in",)


async def test_the_diff_leaves_out_what_the_base_did_meanwhile(host: HostRepository, work: Checkout) -> None:
    base = work.commit("base", {"a": "1\n"})
    work.branch("one", base)
    work.commit("one", {"b": "2\n"})
    work.git("checkout", "-q", "trunk")
    moved = work.commit("moved", {"c": "2\n"})
    work.git("checkout", "-q", "one")
    work.git("merge", "-q", "--no-edit", "trunk")
    await take(host, work, "one", "trunk")
    assert (await host.diff(moved, work.head)).paths == ("b",)
    assert (await host.diff(base, moved)).paths == ("c",)


async def test_the_diff_of_an_empty_repository_is_everything(host: HostRepository, work: Checkout) -> None:
    head = work.commit("first", {"a": "1\n", "d/b": "2\n"})
    await take(host, work, "trunk")
    diff = await host.diff("", head)
    assert (diff.paths, diff.insertions) == (("a", "d/b"), 2)


async def test_attributes_cannot_hide_text_from_reviewers(host: HostRepository, work: Checkout) -> None:
    base = work.commit("base", {"a": "1\n"})
    head = work.commit("hide", {".gitattributes": "* -diff binary\n", "backdoor.py": "import os\n"})
    await take(host, work, "trunk")
    diff = await host.diff(base, head)
    assert b"+import os" in diff.text
    assert diff.binary == ()


async def test_a_diff_of_three_million_characters_is_whole_and_one_above_the_limit_is_an_error(
    tmp_path: Path, work: Checkout
) -> None:
    base = work.commit("base", {"a": "1\n"})
    text = "".join(f"{n:09d}\n" for n in range(300_000))
    head = work.commit("large", {"large.txt": text})
    host = HostRepository(tmp_path / "host.git")
    await take(host, work, "trunk")
    diff = await host.diff(base, head)
    assert diff.insertions == 300_000
    assert diff.text.count(b"\n+0") == 300_000
    with pytest.raises(GitOutputTooLarge):
        await HostRepository(host.path, diff_limit=1_000_000).diff(base, head)


async def test_ten_thousand_files_are_no_trouble(host: HostRepository, work: Checkout) -> None:
    base = work.commit("base", {"a": "1\n"})
    stream = "".join(f"M 100644 inline d/{n % 100}/{n}\ndata 2\nx\n\n" for n in range(10_000))
    header = f"commit refs/heads/many\ncommitter A <a@b> 0 +0000\ndata 4\nmany\nfrom {base}\n"
    work.git("fast-import", "--quiet", stdin=(header + stream).encode())
    head = work.git("rev-parse", "many")
    await take(host, work, "many")
    assert (await host.diff(base, head)).files == 10_000


async def test_files_at_a_commit_are_read_and_nothing_else(host: HostRepository, work: Checkout) -> None:
    work.write("d/file", "x\n")
    (work.path / "link").symlink_to("/etc/passwd")
    head = work.commit("files")
    await take(host, work, "trunk")
    assert await host.read_file(head, "d/file") == b"x\n"
    for path in ("link", "d", "absent", "", "../etc/passwd", "d/../d/file", "/etc/passwd", ":/d/file", "d/*"):
        assert await host.read_file(head, path) is None
    with pytest.raises(InvalidInput):
        await host.read_file(head, "d/file", limit=1)
    assert await host.root_entries(head) == ("d/", "link")
    assert await host.root_entries("f" * 40) is None


# -------------------------------------------------------------------------------------------------------------- push


async def test_push_is_done_once_and_never_forces(host: HostRepository, work: Checkout, tmp_path: Path) -> None:
    first = work.commit("one", {"a": "1"})
    second = work.commit("two", {"a": "2"})
    work.branch("other", first)
    other = work.commit("other", {"a": "3"})
    await take(host, work, "trunk", "other")
    target = remote(bare(tmp_path / "target.git"))
    assert await host.push(target, "t", first, None) is True
    assert await host.push(target, "t", first, None) is False
    with pytest.raises(PushRejected, match=r"not at no commit"):
        await host.push(target, "t", second, None)
    assert await host.push(target, "t", second, first) is True
    with pytest.raises(PushRejected, match="does not contain"):
        await host.push(target, "t", other)
    with pytest.raises(PushRejected, match="does not contain"):
        await host.push(target, "t", first)
    assert git(Path(target.url), "rev-parse", "t") == second


async def test_a_remote_that_moved_to_an_unknown_commit_is_not_overwritten(
    host: HostRepository, work: Checkout, tmp_path: Path
) -> None:
    first = work.commit("one", {"a": "1"})
    await take(host, work, "trunk")
    target = bare(tmp_path / "target.git")
    unseen = work.commit("unseen", {"a": "9"})
    work.git("push", "-q", str(target), "trunk:refs/heads/t")
    with pytest.raises(PushRejected):
        await host.push(remote(target), "t", first)
    assert git(target, "rev-parse", "t") == unseen


async def test_a_refusal_of_the_remote_is_told_with_its_reason(
    host: HostRepository, work: Checkout, tmp_path: Path
) -> None:
    head = work.commit("one", {"a": "1"})
    await take(host, work, "trunk")
    target = bare(tmp_path / "target.git")
    hook = target / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho branch is protected >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(PushRejected, match="branch is protected"):
        await host.push(remote(target), "t", head)


async def test_bundles_carry_refs_without_what_is_excluded(host: HostRepository, work: Checkout) -> None:
    first = work.commit("one", {"a": "1"})
    second = work.commit("two", {"a": "2"})
    await take(host, work, "trunk")
    await host.set_ref("refs/heads/x", second)
    data = await host.bundle(["refs/heads/x"], [first])
    assert f"{second} refs/heads/x\n".encode() in data
    assert f"-{first} ".encode() in data
    with pytest.raises(NotFound):
        await host.bundle(["refs/heads/absent"])


async def test_housekeeping_keeps_what_has_a_name(host: HostRepository, work: Checkout) -> None:
    head = work.commit("one", {"a": "1"})
    await take(host, work, "trunk")
    await host.maintain()
    assert await host.has(head)
