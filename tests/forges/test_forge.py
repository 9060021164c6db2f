"""Pull requests on a directory with real git: opening, deciding, merging once, refusing for a reason."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atelier_dagster.factory.approval import Action, DecisionSource
from atelier_dagster.factory.errors import InvalidInput, NotFound, Refused
from atelier_dagster.factory.ticket import RepoRef
from atelier_dagster.forges import LocalForge
from atelier_dagster.forges.local._documents import current_user
from atelier_dagster.ports import PullRequestState
from tests.support.repositories import Checkout, git


@pytest.fixture
def bare(root: Path) -> Path:
    return root / "demo" / "shop" / "repo.git"


@pytest.fixture
async def opened(forge: LocalForge, repo: RepoRef, source: Checkout) -> PullRequestState:
    await forge.init(repo, source.path)
    return await forge.open_pull_request(repo, head="feature", base="trunk", title="Title", body="Body\n\n- x")


async def test_opening_twice_gives_one_that_is_updated(
    forge: LocalForge, repo: RepoRef, opened: PullRequestState
) -> None:
    assert (opened.number, opened.is_open, opened.merged, opened.changed_files) == (1, True, False, 1)
    again = await forge.open_pull_request(repo, head="feature", base="trunk", title="New: 'title'", body="---\nnew")
    assert (again.number, again.title, again.body) == (1, "New: 'title'", "---\nnew")
    assert again == await forge.get_pull_request(repo, 1)


async def test_many_at_once_open_one(forge: LocalForge, repo: RepoRef, source: Checkout) -> None:
    await forge.init(repo, source.path)
    made = await asyncio.gather(
        *(forge.open_pull_request(repo, head="feature", base="trunk", title="t", body="b") for _ in range(5))
    )
    assert {state.number for state in made} == {1}


async def test_a_pull_request_of_nothing_is_refused(forge: LocalForge, repo: RepoRef, source: Checkout) -> None:
    await forge.init(repo, source.path)
    with pytest.raises(Refused, match="every commit"):
        await forge.open_pull_request(repo, head="trunk", base="trunk", title="t", body="b")
    with pytest.raises(NotFound):
        await forge.open_pull_request(repo, head="absent", base="trunk", title="t", body="b")
    with pytest.raises(NotFound):
        await forge.get_pull_request(repo, 1)


async def test_merging_is_done_once(forge: LocalForge, repo: RepoRef, opened: PullRequestState, bare: Path) -> None:
    answers = await asyncio.gather(
        *(forge.merge(repo, 1, head=opened.head, message="Merge it\n\nTwo") for _ in range(4))
    )
    assert {(answer.merged, answer.commit) for answer in answers} == {(True, git(bare, "rev-parse", "trunk"))}
    parents = git(bare, "show", "-s", "--format=%P%n%s", "trunk").splitlines()
    assert parents[0].split()[1] == opened.head
    assert parents[1] == "Merge it"
    state = await forge.get_pull_request(repo, 1)
    assert (state.merged, state.is_open, state.merge_commit) == (True, False, answers[0].commit)
    assert (state.head, state.changed_files) == (opened.head, 1)
    assert b"+y" in await forge.diff(repo, 1)
    closed = await forge.open_pull_request(repo, head="feature", base="trunk", title="other", body="b")
    assert (closed.number, closed.title, closed.merged) == (1, "Title", True)


async def test_a_merge_that_was_cut_short_is_found_done(
    forge: LocalForge, repo: RepoRef, opened: PullRequestState, root: Path
) -> None:
    path = root / "demo" / "shop" / "pulls" / "1.md"
    before = path.read_bytes()
    done = await forge.merge(repo, 1, head=opened.head, message="m")
    path.write_bytes(before)
    assert await forge.merge(repo, 1, head=opened.head, message="m") == done


async def test_a_moved_head_is_not_merged(
    forge: LocalForge, repo: RepoRef, opened: PullRequestState, source: Checkout, bare: Path
) -> None:
    source.git("checkout", "-q", "feature")
    moved = source.commit("more", {"z": "z"})
    source.git("push", "-q", str(bare), "feature")
    assert (await forge.get_pull_request(repo, 1)).head == moved
    answer = await forge.merge(repo, 1, head=opened.head, message="m")
    assert (answer.merged, answer.refusal) == (False, "head_moved")
    with pytest.raises(InvalidInput):
        await forge.merge(repo, 1, head="feature", message="m")
    assert (await forge.merge(repo, 1, head=moved, message="m")).merged


async def test_a_moved_base_is_not_merged_into(
    forge: LocalForge, repo: RepoRef, opened: PullRequestState, source: Checkout, bare: Path, root: Path
) -> None:
    tip = source.commit("meanwhile", {"other": "z"})
    source.git("push", "-q", str(bare), "trunk")
    answer = await forge.merge(repo, 1, head=opened.head, message="m")
    assert (answer.merged, answer.refusal) == (False, "base_moved")
    assert git(bare, "rev-parse", "trunk") == tip
    lenient = LocalForge(root, must_contain_base=False)
    assert (await lenient.merge(repo, 1, head=opened.head, message="m")).merged
    assert set(git(bare, "ls-tree", "--name-only", "trunk").split()) == {"README", "new", "other"}


async def test_conflicts_are_a_refusal_with_a_reason(
    repo: RepoRef, opened: PullRequestState, source: Checkout, bare: Path, root: Path
) -> None:
    source.commit("meanwhile", {"new": "other\n"})
    source.git("push", "-q", str(bare), "trunk")
    answer = await LocalForge(root, must_contain_base=False).merge(repo, 1, head=opened.head, message="m")
    assert (answer.merged, answer.refusal, answer.reason) == (False, "forge", "conflicts in new")


async def test_protection_refuses_with_its_reason(
    forge: LocalForge, repo: RepoRef, opened: PullRequestState, root: Path
) -> None:
    protected = root / "demo" / "shop" / "protected"
    protected.write_text("main nothing\ntrunk release freeze until Monday\n")
    answer = await forge.merge(repo, 1, head=opened.head, message="m")
    assert (answer.refusal, answer.reason) == ("forge", "trunk is protected: release freeze until Monday")
    protected.unlink()
    assert (await forge.merge(repo, 1, head=opened.head, message="m")).merged


async def test_a_closed_one_is_neither_merged_nor_changed(
    forge: LocalForge, repo: RepoRef, opened: PullRequestState
) -> None:
    await forge.close_pull_request(repo, 1)
    answer = await forge.merge(repo, 1, head=opened.head, message="m")
    assert (answer.refusal, answer.reason) == ("forge", "pull request 1 is closed")
    again = await forge.open_pull_request(repo, head="feature", base="trunk", title="x", body="x")
    assert (again.number, again.title, again.is_open) == (1, "Title", False)


async def test_the_first_merge_creates_the_branch_of_an_empty_repository(
    forge: LocalForge, repo: RepoRef, source: Checkout, bare: Path
) -> None:
    await forge.init(repo, default_branch="trunk")
    assert await forge.default_branch(repo) == "trunk"
    assert await forge.branch_head(repo, "trunk") is None
    assert await forge.list_root_entries(repo, "") == ()
    source.git("push", "-q", str(bare), "feature")
    opened = await forge.open_pull_request(repo, head="feature", base="trunk", title="t", body="b")
    assert opened.changed_files == 2
    answer = await forge.merge(repo, 1, head=opened.head, message="m")
    assert (answer.merged, answer.commit) == (True, opened.head)
    assert await forge.branch_head(repo, "trunk") == opened.head
    assert (await forge.get_pull_request(repo, 1)).changed_files == 2


# --------------------------------------------------------------------------------------------------------- decisions


async def test_decisions_come_from_reviews_commands_and_the_command_line_in_order(
    forge: LocalForge, repo: RepoRef, opened: PullRequestState
) -> None:
    first = await forge.add_review(repo, 1, Action.REQUEST_CHANGES, body="not yet")
    await forge.add_comment(repo, 1, "just talking about /atelier approve")
    await forge.add_comment(repo, 1, "/atelier retry please")
    await forge.add_comment(repo, 1, f"> /atelier approve {opened.head}")
    await forge.add_comment(repo, 1, f"/atelier reject {opened.head} too risky", author="mallory")
    await forge.upsert_pull_request_comment(repo, 1, "summary", f"/atelier approve {opened.head}")
    last = await forge.record_decision(
        repo, 1, Action.APPROVE, head=opened.head, reason="good", comments=["see: a, b", "c"]
    )
    found = await forge.decisions(repo, 1)
    assert [(d.source, d.action) for d in found] == [
        (DecisionSource.REVIEW, Action.REQUEST_CHANGES),
        (DecisionSource.COMMENT, Action.REJECT),
        (DecisionSource.COMMENT, Action.APPROVE),
        (DecisionSource.CLI, Action.APPROVE),
    ]
    assert (found[0].id, found[-1].id) == (first, last)
    assert [decision.actor for decision in found] == [current_user(), "mallory", "atelier[bot]", current_user()]
    assert [decision.may_decide for decision in found] == [True, False, False, True]
    assert [decision.is_bot for decision in found] == [False, False, True, False]
    assert all(decision.head == opened.head for decision in found)
    assert (found[-1].reason, found[-1].comments) == ("good", ("see: a, b", "c"))


async def test_a_file_that_says_nothing_readable_decides_nothing(
    forge: LocalForge, repo: RepoRef, opened: PullRequestState, root: Path
) -> None:
    reviews = root / "demo" / "shop" / "pulls" / "1" / "reviews"
    reviews.mkdir(parents=True)
    (reviews / "a.md").write_text("---\nstate: perhaps\n---\n")
    (reviews / "b.md").write_text("---\nstate: [\n")
    (reviews / "c.md").symlink_to("/etc/passwd")
    assert await forge.decisions(repo, 1) == []
    with pytest.raises(InvalidInput):
        await forge.record_decision(repo, 1, Action.APPROVE, head="feature")


async def test_a_comment_with_a_marker_is_written_once(
    forge: LocalForge, repo: RepoRef, opened: PullRequestState
) -> None:
    for body in ("one", "two"):
        await forge.upsert_pull_request_comment(repo, 1, "qa", body)
    assert [comment.body for comment in await forge.pull_request_comments(repo, 1)] == ["two"]


# -------------------------------------------------------------------------------------------------------- taking in


async def test_branches_tags_and_the_default_branch_are_taken_in(
    forge: LocalForge, repo: RepoRef, source: Checkout, bare: Path
) -> None:
    source.git("tag", "trunk", "feature")
    source.git("update-ref", "refs/pull/1/head", "feature")
    taken = await forge.init(repo, source.path)
    assert (taken.default_branch, taken.branches, taken.created) == ("trunk", ("feature", "trunk"), True)
    assert set(git(bare, "for-each-ref", "--format=%(refname)").split()) == {
        "refs/heads/feature",
        "refs/heads/trunk",
        "refs/tags/trunk",
    }
    assert await forge.branch_head(repo, "trunk") == source.head
    assert (await forge.init(repo, source.path)).created is False
    assert not list((bare / "hooks").glob("*"))


async def test_an_empty_source_keeps_the_name_of_its_branch(forge: LocalForge, repo: RepoRef, tmp_path: Path) -> None:
    for number, kind in enumerate(([], ["--bare"])):
        path = tmp_path / f"empty{number}"
        path.mkdir()
        git(path, "init", "-q", "-b", "develop", *kind)
        other = RepoRef.parse(f"local/demo/empty{number}")
        taken = await forge.init(other, str(path))
        assert (taken.default_branch, taken.branches) == ("develop", ())
        assert taken.notes


async def test_a_detached_head_is_no_default_branch(forge: LocalForge, repo: RepoRef, source: Checkout) -> None:
    source.git("checkout", "-q", "--detach")
    with pytest.raises(Refused, match="no default branch"):
        await forge.init(repo, source.path)
    assert (await forge.init(repo, source.path, "feature")).default_branch == "feature"


async def test_what_cannot_work_is_refused_with_the_reason(
    forge: LocalForge, source: Checkout, tmp_path: Path, root: Path
) -> None:
    git(tmp_path, "clone", "-q", "--depth", "1", source.path.as_uri(), "shallow")
    with pytest.raises(Refused, match="shallow") as caught:
        await forge.init(RepoRef.parse("local/demo/a"), tmp_path / "shallow")
    assert caught.value.code == "SHALLOW_REPOSITORY"
    source.commit("lfs", {"assets/.gitattributes": "*.psd filter=lfs diff=lfs merge=lfs -text\n"})
    with pytest.raises(Refused, match="LFS") as caught:
        await forge.init(RepoRef.parse("local/demo/b"), source.path)
    assert caught.value.code == "LFS_REPOSITORY"
    git(tmp_path, "init", "-q", "--object-format=sha256", "sha256")
    git(tmp_path / "sha256", "commit", "-q", "--allow-empty", "-m", "x")
    with pytest.raises(Refused, match="SHA-256"):
        await forge.init(RepoRef.parse("local/demo/c"), tmp_path / "sha256")
    with pytest.raises(InvalidInput):
        await forge.init(RepoRef.parse("local/demo/d"), tmp_path / "nowhere")
    assert [path for path in root.rglob("*") if path.is_dir()] == []


async def test_submodules_work_and_are_told(forge: LocalForge, repo: RepoRef, source: Checkout, tmp_path: Path) -> None:
    source.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(source.path), "sub")
    source.commit("submodule")
    taken = await forge.init(repo, source.path)
    assert any("submodules" in note for note in taken.notes)
    checks = await forge.preflight()
    assert all(check.ok for check in checks)
    assert any("submodules" in check.detail for check in checks)


@pytest.mark.parametrize(
    "url", ["ext::sh -c touch% x", "--upload-pack=x", "https://a:b@example.org/x", "x\ny", "fd::3"]
)
async def test_addresses_that_run_or_tell_something_are_refused(forge: LocalForge, repo: RepoRef, url: str) -> None:
    with pytest.raises(InvalidInput):
        await forge.init(repo, url)


async def test_a_repository_cannot_lie_in_another(forge: LocalForge, repo: RepoRef) -> None:
    await forge.init(repo)
    with pytest.raises(InvalidInput):
        await forge.init(RepoRef.parse("local/demo/shop/tickets"))
    await forge.init(RepoRef.parse("local/demo/group/shop"))


async def test_files_and_names_are_read_at_a_commit(forge: LocalForge, repo: RepoRef, source: Checkout) -> None:
    source.write('d/café\n"x', "1")
    (source.path / "link").symlink_to("/etc/passwd")
    head = source.commit("names")
    await forge.init(repo, source.path)
    assert await forge.list_root_entries(repo, head) == ("README", "d/", "link")
    assert await forge.get_file(repo, head, 'd/café\n"x') == b"1"
    assert await forge.get_file(repo, head, "link") is None
    assert await forge.get_file(repo, "f" * 40, "README") is None
    with pytest.raises(InvalidInput):
        await forge.get_file(repo, "--output=x", "README")
    assert forge.remote(repo).password is None


async def test_preflight_tells_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checks = await LocalForge(tmp_path / "file" / "below").preflight()
    assert [check.ok for check in checks] == [False, True]
    assert checks[0].fix
