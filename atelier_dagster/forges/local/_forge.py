"""The embedded forge: bare repositories with pull requests as Markdown files. Not here: tickets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from atelier_dagster.factory.approval import Action, HumanDecision
from atelier_dagster.factory.errors import AtelierError, InvalidInput, NotFound, Refused
from atelier_dagster.factory.ticket import RepoRef
from atelier_dagster.files import write_atomic
from atelier_dagster.forges.local._decisions import read_decisions
from atelier_dagster.forges.local._documents import Document, current_user, read_document, render
from atelier_dagster.forges.local._init import TakenIn, take_in
from atelier_dagster.forges.local._merge import Merger
from atelier_dagster.forges.local._store import Store, now, numbers
from atelier_dagster.gitio import Git, branch_ref, change, check_commit, count_changed_files, read_file, root_entries
from atelier_dagster.ports import Check, Comment, GitRemote, MergeAnswer, PullRequestState

_MAX_PROTECTED = 65_536


class LocalForge:
    """Repositories below `root`: `<root>/<owner>/<repo>/repo.git`, pull requests in `pulls/<n>.md` beside it.

    A line `<branch> <reason>` in the file `protected` beside a repository refuses merges into that branch.
    """

    def __init__(
        self,
        root: Path,
        *,
        bot: str = "atelier[bot]",
        tracker: str = "local",
        writers: Iterable[str] = (),
        must_contain_base: bool = True,
    ) -> None:
        self._store = Store.open(root, tracker, bot, writers)
        self._must_contain_base = must_contain_base

    async def preflight(self) -> Sequence[Check]:
        """Whether the directory and git can be used, and what does not work in which repository."""
        found = [self._store.check_root(), await _check_git()]
        if not all(check.ok for check in found):
            return found
        for repo in self._store.repositories():
            found += await self._check_repository(repo)
        return found

    async def init(self, repo: RepoRef, source: str | Path | None = None, default_branch: str = "main") -> TakenIn:
        """Take a repository in, from a path, a URL, or empty (None). One that is there already is left as it is.

        `default_branch` names an empty repository's branch; else the source's own default branch is kept.
        Raises `InvalidInput`, `Refused` (LFS, shallow, no default branch), or an error of git.
        """
        return await take_in(self._store, repo, source, default_branch)

    # ---------------------------------------------------------------------------------------------- repositories

    async def default_branch(self, repo: RepoRef) -> str:
        """The branch that HEAD names, born or not."""
        return (await self._git(repo).run("symbolic-ref", "HEAD")).text.removeprefix("refs/heads/")

    async def branch_head(self, repo: RepoRef, branch: str) -> str | None:
        """Commit at the branch's tip."""
        return await self._merger(repo).tip(branch)

    async def list_root_entries(self, repo: RepoRef, commit: str) -> Sequence[str] | None:
        """Names at the root of a commit; () for "" (an empty repository), None when it cannot be told."""
        return await root_entries(self._git(repo), commit)

    async def get_file(self, repo: RepoRef, commit: str, path: str, limit: int = 1_000_000) -> bytes | None:
        """Content of a regular file at a commit; None when there is none, or it is a link or directory."""
        return await read_file(self._git(repo), commit, path, limit)

    def remote(self, repo: RepoRef) -> GitRemote:
        """The bare repository's path; no credential."""
        return GitRemote(url=str(self._bare(repo)))

    # --------------------------------------------------------------------------------------------- pull requests

    async def open_pull_request(
        self, repo: RepoRef, *, head: str, base: str, title: str, body: str
    ) -> PullRequestState:
        """Open or update. Raises `NotFound` (no such head branch), `Refused` (nothing to merge)."""
        branch_ref(base)
        tip = await self._merger(repo).tip(head)
        async with self._store.locked(repo) as place:
            number = self._find(place / "pulls", head, base)
            if number is not None:
                await self._update(repo, number, title, body)
                return await self.get_pull_request(repo, number)
            if tip is None:
                raise NotFound(f"{repo} has no branch {head!r}", fix="push it first")
            await self._refuse_nothing(repo, tip, base)
            stamp = now()
            fields = {"title": _line(title), "state": "open", "head": head, "base": base, "author": self._store.bot}
            data = render({**fields, "head_commit": tip, "created": stamp, "updated": stamp}, body)
            number = self._store.create_numbered(place / "pulls", data)
        return await self.get_pull_request(repo, number)

    async def get_pull_request(self, repo: RepoRef, number: int) -> PullRequestState:
        """One pull request. Raises `NotFound`, `DocumentUnreadable`."""
        path = self._pull(repo, number)
        document = read_document(path)
        state = document.text("state").lower()
        head = (await self._tip_or_none(repo, document.text("head"))) or document.text("head_commit")
        if state == "merged":
            head = document.text("head_commit") or head
        return PullRequestState(
            number=number,
            url=path.as_uri(),
            title=document.text("title"),
            body=document.body,
            head_branch=document.text("head"),
            base_branch=document.text("base"),
            head=head,
            is_open=state in ("", "open"),
            merged=state == "merged",
            merge_commit=document.text("merge_commit"),
            changed_files=await self._changed_files(repo, document, head),
        )

    async def close_pull_request(self, repo: RepoRef, number: int) -> None:
        """Close without merging; closing a closed or merged one is fine."""
        async with self._store.locked(repo):
            path = self._pull(repo, number)
            document = read_document(path)
            if document.text("state").lower() in ("", "open"):
                write_atomic(path, render({**document.fields, "state": "closed", "updated": now()}, document.body))

    async def diff(self, repo: RepoRef, number: int) -> bytes:
        """The pull request's unified diff, for people."""
        document = read_document(self._pull(repo, number))
        state = await self.get_pull_request(repo, number)
        return (await change(self._git(repo), await self._base(repo, document), state.head)).text

    async def upsert_pull_request_comment(self, repo: RepoRef, number: int, marker: str, body: str) -> Comment:
        """Post the bot's comment that has this marker, or edit it."""
        async with self._store.locked(repo):
            note = self._store.upsert_note(self._talk(repo, number, "comments"), marker, body)
        return self._store.comment(note)

    async def pull_request_comments(self, repo: RepoRef, number: int) -> Sequence[Comment]:
        """All comments of a pull request, oldest first."""
        return [self._store.comment(note) for note in self._store.notes(self._talk(repo, number, "comments"))]

    async def add_comment(self, repo: RepoRef, number: int, body: str, author: str = "") -> Comment:
        """Post a comment as a person; `/atelier ...` commands in it count as decisions."""
        async with self._store.locked(repo):
            fields = {"author": author or current_user()}
            return self._store.comment(self._store.add_note(self._talk(repo, number, "comments"), fields, body))

    async def add_review(
        self, repo: RepoRef, number: int, action: Action, *, body: str = "", commit: str = "", author: str = ""
    ) -> str:
        """Write a review of a commit (the present head by default); returns its id."""
        commit = check_commit(commit or (await self.get_pull_request(repo, number)).head)
        async with self._store.locked(repo):
            fields = {"author": author or current_user(), "state": action.value, "commit": commit}
            return f"review-{self._store.add_note(self._talk(repo, number, 'reviews'), fields, body).id}"

    async def record_decision(
        self, repo: RepoRef, number: int, action: Action, *, head: str, reason: str = "", comments: Sequence[str] = ()
    ) -> str:
        """Write a decision that the operating-system user of this process makes; returns its id."""
        check_commit(head)
        async with self._store.locked(repo):
            fields = {"author": current_user(), "state": action.value, "commit": head, "comments": list(comments)}
            return f"cli-{self._store.add_note(self._talk(repo, number, 'decisions'), fields, reason).id}"

    async def decisions(self, repo: RepoRef, number: int) -> Sequence[HumanDecision]:
        """Reviews, `/atelier` commands in comments, and decisions of `atelier approve|reject`, oldest first."""
        return read_decisions(self._store, self._pull(repo, number).with_suffix(""))

    async def merge(self, repo: RepoRef, number: int, *, head: str, message: str) -> MergeAnswer:
        """Merge if the head is still `head`; merged already with that head is success."""
        check_commit(head)
        async with self._store.locked(repo) as place:
            path = self._pull(repo, number)
            document = read_document(path)
            state = document.text("state").lower()
            if state == "merged" and document.text("head_commit") == head:
                return MergeAnswer(merged=True, commit=document.text("merge_commit"))
            if state not in ("", "open"):
                return MergeAnswer(merged=False, refusal="forge", reason=f"pull request {number} is {state}")
            answer = await self._merge(repo, place, document, head, message)
            if answer.merged:
                merged = {"state": "merged", "merge_commit": answer.commit, "head_commit": head, "updated": now()}
                write_atomic(path, render({**document.fields, **merged}, document.body))
        return answer

    # ------------------------------------------------------------------------------------------------- internals

    def _bare(self, repo: RepoRef) -> Path:
        return self._store.existing(repo) / "repo.git"

    def _git(self, repo: RepoRef) -> Git:
        return Git(self._bare(repo))

    def _merger(self, repo: RepoRef) -> Merger:
        return Merger(self._git(repo), self._must_contain_base)

    def _pull(self, repo: RepoRef, number: int) -> Path:
        path = self._store.existing(repo) / "pulls" / f"{int(number)}.md"
        if not path.is_file():
            raise NotFound(f"{repo} has no pull request {number}", fix="see the numbers below `pulls`")
        return path

    def _talk(self, repo: RepoRef, number: int, kind: str) -> Path:
        return self._pull(repo, number).with_suffix("") / kind

    def _find(self, directory: Path, head: str, base: str) -> int | None:
        """The open pull request with these branches, else the latest closed one."""
        found: int | None = None
        for number in numbers(directory):
            document = read_document(directory / f"{number}.md")
            if (document.text("head"), document.text("base")) != (head, base):
                continue
            found = number
            if document.text("state").lower() in ("", "open"):
                return number
        return found

    async def _update(self, repo: RepoRef, number: int, title: str, body: str) -> None:
        path = self._pull(repo, number)
        document = read_document(path)
        if document.text("state").lower() not in ("", "open"):
            return
        head = await self._tip_or_none(repo, document.text("head")) or document.text("head_commit")
        fields = {**document.fields, "title": _line(title), "head_commit": head}
        if render(fields, body) != document.raw:
            write_atomic(path, render({**fields, "updated": now()}, body))

    async def _refuse_nothing(self, repo: RepoRef, tip: str, base: str) -> None:
        merger = self._merger(repo)
        base_tip = await merger.tip(base)
        if base_tip is not None and await merger.contains(base_tip, tip):
            raise Refused(f"{base} has every commit of the branch already", code="NOTHING_TO_MERGE")

    async def _tip_or_none(self, repo: RepoRef, branch: str) -> str | None:
        try:
            return await self._merger(repo).tip(branch)
        except InvalidInput:
            return None

    async def _merge(self, repo: RepoRef, place: Path, document: Document, head: str, message: str) -> MergeAnswer:
        branch, base = document.text("head"), document.text("base")
        merger = self._merger(repo)
        tip = await merger.tip(branch)
        if tip != head:
            reason = f"{branch} is at {tip or 'no commit'}, not at {head}"
            return MergeAnswer(merged=False, refusal="head_moved", reason=reason)
        if reason := _protection(place / "protected", base):
            return MergeAnswer(merged=False, refusal="forge", reason=f"{base} is protected: {reason}")
        return await merger.merge(head, base, message)

    async def _base(self, repo: RepoRef, document: Document) -> str:
        """The base branch's commit, as it was before the merge; "" where there was none."""
        if document.text("state").lower() != "merged":
            return await self._tip_or_none(repo, document.text("base")) or ""
        commit = check_commit(document.text("merge_commit"))
        _, *parents = (await self._git(repo).run("rev-list", "--parents", "-n1", commit)).text.split()
        return parents[0] if len(parents) > 1 else ""

    async def _changed_files(self, repo: RepoRef, document: Document, head: str) -> int:
        return await count_changed_files(self._git(repo), await self._base(repo, document), head) if head else 0

    async def _check_repository(self, repo: RepoRef) -> list[Check]:
        name = f"repository {repo}"
        try:
            taken = await self.init(repo)
        except AtelierError as error:
            return [Check(name, ok=False, detail=error.message, fix=error.fix)]
        detail = f"default branch {taken.default_branch}, {len(taken.branches)} branches"
        checks = [Check(name, ok=True, detail=detail)]
        return checks + [Check(name, ok=True, detail=note, required=False) for note in taken.notes]


async def _check_git() -> Check:
    try:
        said = (await Git().run("version")).text
    except AtelierError as error:
        return Check("git", ok=False, detail=error.message, fix=error.fix)
    match = re.search(r"(\d+)\.(\d+)", said)
    new_enough = match is not None and (int(match[1]), int(match[2])) >= (2, 38)
    return Check("git", ok=new_enough, detail=said, fix="" if new_enough else "install git 2.38 or newer")


def _protection(path: Path, branch: str) -> str:
    try:
        text = path.read_bytes()[:_MAX_PROTECTED].decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    for line in text.splitlines():
        name, _, reason = line.strip().partition(" ")
        if name in (branch, "*"):
            return reason.strip() or "no merges are allowed"
    return ""


def _line(text: str) -> str:
    return " ".join(text.split())
