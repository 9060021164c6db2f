"""Tickets as files that any editor writes: tolerant reading, exact change detection, safe writing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atelier_dagster.factory.errors import InvalidInput, NotFound
from atelier_dagster.factory.ticket import RepoRef, TicketKey
from atelier_dagster.forges import DocumentUnreadable, LocalForge, LocalTracker
from atelier_dagster.forges.local._documents import current_user


@pytest.fixture
async def tickets(forge: LocalForge, repo: RepoRef, root: Path) -> Path:
    await forge.init(repo)
    return root / "demo" / "shop" / "tickets"


def key(repo: RepoRef, number: int = 1) -> TicketKey:
    return TicketKey(repo=repo, number=number)


async def test_a_ticket_comes_back_as_it_was_written(tracker: LocalTracker, tickets: Path, repo: RepoRef) -> None:
    body = "Do `this`\n\n---\nnot: front matter\n\n日本 😀"
    made = await tracker.create_issue(repo, title="Fix: 'it'\nnow", body=body, labels=["atelier", "a b"])
    assert made == await tracker.get_issue(key(repo))
    assert (made.title, made.body, made.labels) == ("Fix: 'it' now", body, ("atelier", "a b"))
    assert made.is_open
    assert made.author == current_user()
    assert made.author_may_write
    assert made.url == (tickets / "1.md").as_uri()


FORMS = {
    "plain text": ("Make it red\n\nPlease.", "Make it red", (), "Please."),
    "heading": ("# Make it red\nPlease.", "Make it red", (), "Please."),
    "windows": ("\ufeff---\r\ntitle: Red\r\nlabels: a, b\r\n---\r\nPlease.\r\n", "Red", ("a", "b"), "Please."),
    "colon": ("---\ntitle: Fix: it\nlabels: [a, 'b']\n---\nPlease.", "Fix: it", ("a", "b"), "Please."),
    "yaml list": ("---\ntitle: yes\nlabels:\n  - a\n  - 1.0\n---\n\nPlease.\n", "yes", ("a", "1.0"), "Please."),
    "number": ("---\nTitle: 123\n---\nPlease.", "123", (), "Please."),
    "quoted": ('---\ntitle: "a # b"\n---\nPlease.', "a # b", (), "Please."),
    "no header fields": ("---\n---\nMake it red\nPlease.", "Make it red", (), "Please."),
    "date": ("---\ntitle: x\ncreated: 2024-05-01\nupdated: soon\n---\nPlease.", "x", (), "Please."),
    "empty": ("", "Ticket 1", (), ""),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
async def test_people_write_tickets_in_many_ways(
    tracker: LocalTracker, tickets: Path, repo: RepoRef, form: str
) -> None:
    text, title, labels, body = FORMS[form]
    (tickets / "1.md").write_bytes(text.encode())
    issue = await tracker.get_issue(key(repo))
    assert (issue.title, issue.labels, issue.body, issue.is_open) == (title, labels, body, True)
    assert await tracker.problems(repo) == []


BAD = {
    "not closed": b"---\ntitle: x\n",
    "not text": b"\xff\xfe\x00x",
    "nested": b"---\ntitle: {a: [b]}\n---\n",
    "a list": b"---\n- a\n- b\n---\n",
    "deep": b"---\ntitle: " + b"[" * 5000 + b"\n---\n",
    "state": b"---\ntitle: x\nstate: maybe\n---\n",
    "garbage": b"---\ntitle: 'x\n%%%\n---\n",
    "long header": b"---\ntitle: " + b"x" * 70_000 + b"\n---\n",
    "too large": b"x" * 1_000_001,
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_file_is_named_and_hides_no_other(
    tracker: LocalTracker, tickets: Path, repo: RepoRef, kind: str
) -> None:
    await tracker.create_issue(repo, title="good", body="")
    (tickets / "2.md").write_bytes(BAD[kind])
    with pytest.raises(DocumentUnreadable, match=r"2\.md") as caught:
        await tracker.get_issue(key(repo, 2))
    assert (caught.value.code, bool(caught.value.fix)) == ("TICKET_UNREADABLE", True)
    issues, cursor = await tracker.issues_changed_since(repo, "")
    assert [issue.key.number for issue in issues] == [1]
    assert [type(error) for error in await tracker.problems(repo)] == [DocumentUnreadable]
    checks = await tracker.preflight()
    assert [check.required for check in checks if not check.ok] == [False]
    (tickets / "2.md").write_text("mended")
    issues, _ = await tracker.issues_changed_since(repo, cursor)
    assert [(issue.key.number, issue.title) for issue in issues] == [(2, "mended")]


async def test_what_is_no_ticket_is_not_read_as_one(
    tracker: LocalTracker, tickets: Path, repo: RepoRef, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("title")
    (tickets / "1.md").symlink_to(secret)
    os.mkfifo(tickets / "2.md")
    (tickets / "3.md").mkdir()
    for name in ("0.md", "007.md", "x.md", "4.txt", ".5.md.swp", "6.md~"):
        (tickets / name).write_text("no")
    issues, _ = await tracker.issues_changed_since(repo, "")
    assert issues == []
    named = " ".join(error.message for error in await tracker.problems(repo))
    assert all(name in named for name in ("1.md", "2.md", "3.md", "0.md", "007.md", "x.md"))
    assert not any(name in named for name in ("4.txt", ".5.md", "6.md~"))


async def test_only_changes_are_told_whatever_the_clock_says(
    tracker: LocalTracker, tickets: Path, repo: RepoRef
) -> None:
    for title in "abc":
        await tracker.create_issue(repo, title=title, body="")
    issues, cursor = await tracker.issues_changed_since(repo, "")
    assert len(issues) == 3
    assert await tracker.issues_changed_since(repo, cursor) == ([], cursor)
    path = tickets / "2.md"
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(b"title: b", b"title: B"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.utime(tickets / "3.md", ns=(1, 1))
    issues, cursor = await tracker.issues_changed_since(repo, cursor)
    assert [issue.title for issue in issues] == ["B"]
    path.write_bytes(path.read_bytes().replace(b"title: B", b"title: C"))
    os.utime(path, ns=(2**62, 2**62))
    issues, cursor = await tracker.issues_changed_since(repo, cursor)
    assert [issue.title for issue in issues] == ["C"]
    assert await tracker.issues_changed_since(repo, cursor) == ([], cursor)


async def test_closed_and_unlabelled_and_commented_tickets_are_changes(
    tracker: LocalTracker, tickets: Path, repo: RepoRef
) -> None:
    await tracker.create_issue(repo, title="a", body="", labels=["atelier"])
    _, cursor = await tracker.issues_changed_since(repo, "")
    await tracker.set_labels(key(repo), [])
    issues, cursor = await tracker.issues_changed_since(repo, cursor)
    assert [issue.labels for issue in issues] == [()]
    await tracker.close_issue(key(repo))
    await tracker.close_issue(key(repo))
    issues, cursor = await tracker.issues_changed_since(repo, cursor)
    assert [issue.is_open for issue in issues] == [False]
    assert (await tracker.reopen(key(repo))).is_open
    _, cursor = await tracker.issues_changed_since(repo, cursor)
    await tracker.add_comment(key(repo), "/atelier retry")
    issues, cursor = await tracker.issues_changed_since(repo, cursor)
    assert [issue.key.number for issue in issues] == [1]


async def test_a_deleted_file_is_a_closed_ticket_and_its_number_is_not_given_again(
    tracker: LocalTracker, tickets: Path, repo: RepoRef
) -> None:
    await tracker.create_issue(repo, title="a", body="")
    await tracker.create_issue(repo, title="b", body="")
    _, cursor = await tracker.issues_changed_since(repo, "")
    (tickets / "2.md").unlink()
    issues, cursor = await tracker.issues_changed_since(repo, cursor)
    assert [(issue.key.number, issue.is_open) for issue in issues] == [(2, False)]
    assert await tracker.issues_changed_since(repo, cursor) == ([], cursor)
    assert (await tracker.create_issue(repo, title="c", body="")).key.number == 3
    (tickets / "2.md").write_text("back")
    issues, _ = await tracker.issues_changed_since(repo, cursor)
    assert [(issue.key.number, issue.is_open) for issue in issues] == [(2, True), (3, True)]


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"epoch": 1, "sequence": "x", "entries": {}}'])
async def test_a_damaged_index_tells_everything_once_more(
    tracker: LocalTracker, tickets: Path, repo: RepoRef, damage: str
) -> None:
    await tracker.create_issue(repo, title="a", body="")
    _, cursor = await tracker.issues_changed_since(repo, "")
    (tickets / ".index.json").write_text(damage)
    issues, cursor = await tracker.issues_changed_since(repo, cursor)
    assert len(issues) == 1
    assert await tracker.issues_changed_since(repo, cursor) == ([], cursor)
    assert len((await tracker.issues_changed_since(repo, "of another installation:5"))[0]) == 1


async def test_unchanged_tickets_are_not_read(tracker: LocalTracker, tickets: Path, repo: RepoRef) -> None:
    for number in range(1, 301):
        (tickets / f"{number}.md").write_text(f"ticket {number}")
        os.utime(tickets / f"{number}.md", ns=(1, 1))
    _, cursor = await tracker.issues_changed_since(repo, "")
    index = json.loads((tickets / ".index.json").read_text())
    for entry in index["entries"].values():
        entry["racy"] = False
        entry["digest"] = "not computed again"
    (tickets / ".index.json").write_text(json.dumps(index))
    assert await tracker.issues_changed_since(repo, cursor) == ([], cursor)


async def test_a_comment_with_a_marker_is_written_once(tracker: LocalTracker, tickets: Path, repo: RepoRef) -> None:
    await tracker.create_issue(repo, title="a", body="")
    await tracker.add_comment(key(repo), "first")
    made = await asyncio.gather(*(tracker.upsert_comment(key(repo), "plan", "text") for _ in range(5)))
    await tracker.upsert_comment(key(repo), "other", "text")
    edited = await tracker.upsert_comment(key(repo), "plan", "# new\r\ntext\n")
    comments = await tracker.comments(key(repo))
    assert [comment.body for comment in comments] == ["first", "# new\ntext", "text"]
    assert {comment.id for comment in made} == {edited.id}
    assert edited.created_at == made[0].created_at
    assert [(c.is_bot, c.author_may_write) for c in comments] == [(False, True), (True, False), (True, False)]


async def test_a_person_cannot_have_a_comment_overwritten_by_copying_its_marker(
    tracker: LocalTracker, tickets: Path, repo: RepoRef
) -> None:
    await tracker.create_issue(repo, title="a", body="")
    directory = tickets / "1" / "comments"
    directory.mkdir(parents=True)
    (directory / "0.md").write_text("---\nauthor: mallory\nmarker: plan\n---\nmine")
    os.utime(directory / "0.md", (1_700_000_000, 1_700_000_000))  # written long before
    await tracker.upsert_comment(key(repo), "plan", "ours")
    assert [comment.body for comment in await tracker.comments(key(repo))] == ["mine", "ours"]


async def test_a_bad_comment_hides_no_other(tracker: LocalTracker, tickets: Path, repo: RepoRef) -> None:
    await tracker.create_issue(repo, title="a", body="")
    await tracker.add_comment(key(repo), "good")
    (tickets / "1" / "comments" / "bad.md").write_bytes(b"\xff")
    (tickets / "1" / "comments" / "link.md").symlink_to("/etc/passwd")
    assert [comment.body for comment in await tracker.comments(key(repo))] == ["good"]
    assert len(await tracker.problems(repo)) == 2


async def test_a_name_in_someone_elses_file_is_not_theirs(
    root: Path, tickets: Path, repo: RepoRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = LocalTracker(root, writers=["alice"])
    for number, author in enumerate(["alice", current_user(), "mallory"], start=1):
        (tickets / f"{number}.md").write_text(f"---\nauthor: {author}\n---\nx")
    found = [await tracker.get_issue(key(repo, number)) for number in (1, 2, 3)]
    assert [issue.author_may_write for issue in found] == [True, True, False]
    if os.getuid() == 0:
        os.chown(tickets / "1.md", 12345, 12345)
        stolen = await tracker.get_issue(key(repo, 1))
        assert (stolen.author, stolen.author_may_write) == ("uid-12345", False)
        await tracker.close_issue(key(repo, 1))
        kept = await tracker.get_issue(key(repo, 1))
        assert (kept.author, kept.author_may_write) == ("uid-12345", False)


async def test_edits_keep_what_a_person_wrote(tracker: LocalTracker, tickets: Path, repo: RepoRef) -> None:
    (tickets / "1.md").write_text("---\ntitle: x\nmilestone: '7'\nlabels: [b]\n---\n\nText\n")
    await tracker.close_issue(key(repo))
    text = (tickets / "1.md").read_text()
    assert "milestone: '7'" in text
    assert text.endswith("\nText\n")


@pytest.mark.parametrize("name", ["../x", "a/../../b", "/etc", "a\0b", "", ".git", "x.git"])
async def test_names_that_lead_elsewhere_are_refused(tracker: LocalTracker, tickets: Path, name: str) -> None:
    for ref in (
        RepoRef(tracker="local", owner=name, name="shop"),
        RepoRef(tracker="local", owner="demo", name=name),
        RepoRef(tracker="other", owner="demo", name="shop"),
    ):
        with pytest.raises(InvalidInput):
            await tracker.get_issue(key(ref))


async def test_what_is_not_there_is_not_found(tracker: LocalTracker, tickets: Path, repo: RepoRef) -> None:
    with pytest.raises(NotFound):
        await tracker.get_issue(key(repo, 9))
    with pytest.raises(NotFound):
        await tracker.issues_changed_since(RepoRef.parse("local/demo/absent"), "")
    with pytest.raises(InvalidInput):
        await tracker.create_issue(repo, title=" ", body="")


async def test_numbers_are_given_once_among_processes(tracker: LocalTracker, tickets: Path, repo: RepoRef) -> None:
    program = (
        "import asyncio, sys, pathlib\n"
        "from atelier_dagster.factory.ticket import RepoRef\n"
        "from atelier_dagster.forges import LocalTracker\n"
        "async def main():\n"
        "    tracker = LocalTracker(pathlib.Path(sys.argv[1]))\n"
        "    repo = RepoRef.parse('local/demo/shop')\n"
        "    for n in range(15):\n"
        "        print((await tracker.create_issue(repo, title=f't{n}', body='')).key.number)\n"
        "asyncio.run(main())\n"
    )
    root = str(tickets.parent.parent.parent)
    argv = (sys.executable, "-c", program, root)
    processes = [await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE) for _ in range(3)]
    given = [int(line) for process in processes for line in (await process.communicate())[0].split()]
    assert sorted(given) == list(range(1, 46))
    issues, _ = await tracker.issues_changed_since(repo, "")
    assert len(issues) == 45
    assert not list(tickets.glob(".*.tmp"))
