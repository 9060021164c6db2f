"""The host's own clean repository of one code repository: fetch, take bundles in, merge, diff, push. No work tree."""

from __future__ import annotations

import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from atelier_dagster.delivery._bundle import BundleLimits, take_bundle
from atelier_dagster.factory.errors import InvalidInput, NotFound
from atelier_dagster.files import file_lock, read_regular
from atelier_dagster.gitio import (
    Change,
    Git,
    Identity,
    PushRejected,
    branch_ref,
    change,
    changed_paths,
    check_commit,
    check_ref,
    check_remote_url,
    contains,
    merge_trees,
    read_file,
    ref_commit,
    root_entries,
    shown,
)
from atelier_dagster.ports import GitRemote

_LISTED = re.compile(r"([0-9a-f]{40})\t(refs/\S+)")
_STALE_SECONDS = 86_400
_MAX_COMMITS = 10_000


class _Any(Enum):
    FAST_FORWARD = "whatever the new commit contains"


@dataclass(frozen=True)
class Merged:
    """How a merge of branches went. `conflicts` maps each branch that was left out to the paths in conflict."""

    head: str
    merged: tuple[str, ...]
    conflicts: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class HostRepository:
    """A bare repository at `path` that no agent can write. Made when first needed; several processes may use it."""

    path: Path
    identity: Identity = field(default_factory=Identity)
    timeout: float = 600.0
    """Seconds for one git command."""
    diff_limit: int = 64_000_000
    """Bytes of a diff; a larger one is an error, never cut off."""
    bundle_limits: BundleLimits = field(default_factory=BundleLimits)

    @property
    def git(self) -> Git:
        """The runner for this repository."""
        return Git(self.path.absolute(), identity=self.identity, timeout=self.timeout)

    async def ensure(self) -> None:
        """Make the repository unless it is there."""
        path = self.path.absolute()
        if (path / "HEAD").is_file():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        async with file_lock(path.parent / f".{path.name}.lock"):
            if (path / "HEAD").is_file():
                return
            scratch = path.parent / f".{path.name}.{secrets.token_hex(6)}"
            await Git(timeout=self.timeout).run("init", "--quiet", "--bare", "--template=", "--", str(scratch))
            shutil.rmtree(path, ignore_errors=True)
            scratch.rename(path)

    async def maintain(self) -> None:
        """Pack what is loose and drop what nothing names any more; housekeeping calls it now and then."""
        await self.ensure()
        for scratch in self.path.absolute().glob("incoming-*"):
            if scratch.stat().st_mtime < time.time() - _STALE_SECONDS:
                shutil.rmtree(scratch, ignore_errors=True)
        await self.git.run("gc", "--quiet")

    # -------------------------------------------------------------------------------------------------- questions

    async def ref(self, ref: str) -> str | None:
        """Commit that a full ref names here, or None."""
        await self.ensure()
        return await ref_commit(self.git, ref)

    async def has(self, commit: str) -> bool:
        """Whether a commit is here."""
        await self.ensure()
        return (await self.git.run("cat-file", "-e", f"{check_commit(commit)}^{{commit}}", ok=(0, 1, 128))).code == 0

    async def contains(self, commit: str, ancestor: str) -> bool:
        """Whether `ancestor` ("" is in everything) is `commit` or in its history."""
        return not ancestor or await contains(self.git, commit, ancestor)

    async def commits(self, base: str, head: str) -> tuple[str, ...]:
        """Commits of `head` that are not in `base` ("" for all), oldest first."""
        excluded = [f"^{check_commit(base)}"] if base else []
        argv = ("rev-list", "--reverse", "--topo-order", f"--max-count={_MAX_COMMITS}")
        return tuple((await self.git.run(*argv, check_commit(head), *excluded)).text.splitlines())

    async def find_trailer(self, head: str, base: str, trailer: str) -> str | None:
        """The latest commit of `base..head` whose message has this line."""
        excluded = [f"^{check_commit(base)}"] if base else []
        argv = ("rev-list", "--max-count=1", "--fixed-strings", f"--grep={trailer}", check_commit(head), *excluded)
        return (await self.git.run(*argv)).text or None

    async def read_file(self, commit: str, path: str, limit: int = 1_000_000) -> bytes | None:
        """Content of a regular file at a commit, or None."""
        return await read_file(self.git, commit, path, limit)

    async def has_file(self, commit: str, path: str) -> bool:
        """Whether a commit has a file, or a link, at a path."""
        out = await self.git.run("cat-file", "-t", f"{check_commit(commit)}:{path}", ok=(0, 128))
        return out.text == "blob"

    async def shared(self, one: str, other: str) -> str:
        """The latest commit that two histories share; "" when they share nothing."""
        return (await self.git.run("merge-base", check_commit(one), check_commit(other), ok=(0, 1))).text

    async def root_entries(self, commit: str) -> tuple[str, ...] | None:
        """Names at the root of a commit; () for "", None when it cannot be told."""
        await self.ensure()
        return await root_entries(self.git, commit)

    async def changed_paths(self, base: str, head: str) -> tuple[str, ...]:
        """Every path touched by `base...head`, old and new names of renames included."""
        return await changed_paths(self.git, base, head)

    async def new_gitlinks(self, base: str, head: str) -> tuple[str, ...]:
        """Directories that became submodules in `base...head`."""
        start = await self.git.run("merge-base", base, head, ok=(0, 1)) if base else None
        old = start.text if start and start.text else None
        after = await self._gitlinks(head)
        return tuple(sorted(after - (await self._gitlinks(old) if old else set())))

    async def _gitlinks(self, commit: str) -> set[str]:
        out = await self.git.run("ls-tree", "-r", "-z", check_commit(commit))
        entries = (entry.partition(b"\t") for entry in out.stdout.split(b"\0"))
        return {shown(name) for meta, _, name in entries if meta.startswith(b"160000 ")}

    async def diff(self, base: str, head: str) -> Change:
        """`git diff base...head`; `base` "" stands for an empty repository. Raises `GitOutputTooLarge`."""
        return await change(replace(self.git, output_limit=self.diff_limit), base, head)

    # ------------------------------------------------------------------------------------------------------ refs

    async def set_ref(self, ref: str, commit: str) -> None:
        """Point a full ref at a commit that is here."""
        await self.ensure()
        await self.git.run("update-ref", check_ref(ref), check_commit(commit))

    async def delete_ref(self, ref: str) -> None:
        """Remove a ref; removing a missing one is fine."""
        await self.git.run("update-ref", "-d", check_ref(ref))

    # --------------------------------------------------------------------------------------------------- remotes

    async def list_remote(self, remote: GitRemote, refs: Sequence[str]) -> dict[str, str | None]:
        """What the remote's refs name now; None for those it does not have."""
        wanted = [check_ref(ref) for ref in refs]
        argv = ("ls-remote", "--quiet", "--refs", "--", check_remote_url(remote.url), *wanted)
        found = dict.fromkeys(wanted)
        answer: dict[str, str | None] = dict(found)
        for line in (await self.git.run(*argv, remote=remote)).text.splitlines():
            match = _LISTED.fullmatch(line)
            if match is not None and match[2] in answer:
                answer[match[2]] = match[1]
        return answer

    async def fetch(self, remote: GitRemote, branches: Mapping[str, str] | Sequence[str]) -> dict[str, str | None]:
        """Get branches (or full refs) with their history, by name; None for those that the remote does not have.

        Asks first, and transfers only what is not here yet. A mapping says where each branch is known to be: nothing
        is even asked when all that is here. They are kept below `refs/remotes/origin/`.
        """
        await self.ensure()
        if isinstance(branches, Mapping) and await self._all_kept(branches):
            return dict(branches)
        refs = {name: _full(name) for name in branches}
        listed = await self.list_remote(remote, list(refs.values())) if refs else {}
        missing = [ref for ref, commit in listed.items() if commit and await self.ref(_kept(ref)) != commit]
        if missing:
            specs = [f"+{ref}:{_kept(ref)}" for ref in missing]
            argv = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--")
            await self.git.run(*argv, check_remote_url(remote.url), *specs, remote=remote)
        return {name: listed[ref] and await self.ref(_kept(ref)) for name, ref in refs.items()}

    async def _all_kept(self, tips: Mapping[str, str]) -> bool:
        kept = [await self.ref(_kept(_full(name))) == commit for name, commit in tips.items()]
        return all(kept)

    async def push(
        self, remote: GitRemote, branch: str, commit: str, expected_old: str | _Any | None = _Any.FAST_FORWARD
    ) -> bool:
        """Push one commit to one branch (or full ref); False when it was there already. Never forces.

        `expected_old` is what the remote must have there now (None or "": nothing); by default whatever `commit`
        contains. Raises `PushRejected`.
        """
        ref = _full(branch)
        check_commit(commit)
        now = (await self.list_remote(remote, [ref]))[ref]
        if now == commit:
            return False
        if expected_old is not _Any.FAST_FORWARD and now != (expected_old or None):
            raise PushRejected(
                f"{ref} is at {now or 'no commit'} on the forge, not at {expected_old or 'no commit'}",
                fix="someone else pushed: fetch it and bring the change up to date",
            )
        if now is not None and not (await self.has(now) and await contains(self.git, commit, now)):
            raise PushRejected(
                f"{ref} is at {now} on the forge, which the new commit does not contain",
                fix="fetch it and merge it; nothing is ever forced",
            )
        await self._push(remote, ref, commit)
        return True

    async def _push(self, remote: GitRemote, ref: str, commit: str) -> None:
        argv = ("push", "--porcelain", "--no-verify", "--recurse-submodules=no", "--no-signed", "--")
        url = check_remote_url(remote.url)
        out = await self.git.run(*argv, url, f"{commit}:{ref}", remote=remote, ok=(0, 1))
        if out.code == 0:
            return
        if (await self.list_remote(remote, [ref]))[ref] == commit:
            return
        lines = [line for line in out.text.splitlines() if line.startswith("!")]
        said = "\n".join(line for line in out.stderr.splitlines() if line.startswith("remote:"))
        raise PushRejected(
            f"the forge did not take {ref}: {' '.join(lines) or out.stderr[-1000:]} {said[-1000:]}".strip(),
            fix="see the reason; a protected branch needs its rule changed",
        )

    # --------------------------------------------------------------------------------------------------- bundles

    async def import_bundle(
        self, data: bytes | Path, *, ref: str, expected_parent: str, limit: int | None = None
    ) -> str:
        """Take in a bundle of exactly `ref` that descends from `expected_parent` ("" for any); returns its commit.

        The ref is moved here too. Raises `BundleRejected`.
        """
        await self.ensure()
        limits = self.bundle_limits if limit is None else replace(self.bundle_limits, packed=limit)
        if isinstance(data, Path):
            data, _ = read_regular(data, limits.packed)
        head = await take_bundle(self.git, data, ref=ref, expected_parent=expected_parent, limits=limits)
        await self.set_ref(ref, head)
        return head

    async def bundle(self, refs: Sequence[str], exclude: Sequence[str] = (), limit: int = 1_000_000_000) -> bytes:
        """A bundle of full refs, without the history of the commits in `exclude`. Raises `NotFound`."""
        for ref in refs:
            if await self.ref(ref) is None:
                raise NotFound(f"{self.path} has no {ref}", fix="fetch it first")
        if not refs:
            raise InvalidInput("a bundle needs a ref", fix="name one")
        left_out = [f"^{check_commit(commit)}" for commit in exclude]
        git = replace(self.git, output_limit=limit)
        return (await git.run("bundle", "create", "--quiet", "-", *refs, *left_out)).stdout

    # ---------------------------------------------------------------------------------------------------- merges

    async def merge(self, branches: Mapping[str, str], onto: str) -> Merged:
        """Merge branches (name -> commit) one after the other onto a commit ("" for an empty repository).

        One that conflicts is left out whole. The same merge gives the same commit, whenever it is made.
        """
        await self.ensure()
        head, merged, conflicts = onto, list[str](), dict[str, tuple[str, ...]]()
        for name, commit in branches.items():
            new, paths = await self._merge_one(head, commit, f"Merge {name}")
            if paths:
                conflicts[name] = paths
            else:
                head = new
                merged.append(name)
        return Merged(head, tuple(merged), conflicts)

    async def update_with_base(self, head: str, base: str, base_name: str = "the base branch") -> Merged:
        """Bring `base` into `head`; `conflicts` is empty when that went well, or there was nothing to bring."""
        new, paths = await self._merge_one(head, base, f"Merge {base_name}") if base else (head, ())
        conflicts = {base_name: paths} if paths else {}
        return Merged(head if paths else new, () if paths or new == head else (base_name,), conflicts)

    async def _merge_one(self, ours: str, theirs: str, message: str) -> tuple[str, tuple[str, ...]]:
        if not ours or ours == theirs:
            return theirs, ()
        if await contains(self.git, ours, theirs):
            return ours, ()
        if await contains(self.git, theirs, ours):
            return theirs, ()
        found = await merge_trees(self.git, ours, theirs)
        if found.conflicts:
            return ours, found.conflicts
        return await self._commit(found.tree, (ours, theirs), message), ()

    async def _commit(self, tree: str, parents: Sequence[str], message: str) -> str:
        """A commit whose dates follow from its parents', so that making it twice makes one commit."""
        out = await self.git.run("show", "--no-patch", "--no-notes", "--format=%ct", *parents)
        stamp = f"@{max(int(line) for line in out.text.split())} +0000"
        dates = {"GIT_AUTHOR_DATE": stamp, "GIT_COMMITTER_DATE": stamp}
        links = [part for parent in parents for part in ("-p", parent)]
        text = message.replace("\0", "").encode("utf-8", "backslashreplace") + b"\n"
        return (await self.git.run("commit-tree", *links, "-F", "-", tree, stdin=text, env=dates)).text


def _full(name: str) -> str:
    """A full ref as it is, and anything else as a branch."""
    return check_ref(name) if name.startswith("refs/") else branch_ref(name)


def _kept(ref: str) -> str:
    """Where a remote's ref is kept here."""
    branch = ref.removeprefix("refs/heads/")
    return f"refs/remotes/origin/{branch}" if branch != ref else f"refs/remotes/other/{ref.removeprefix('refs/')}"
