"""Merges a pull request inside a bare repository, without a work tree. Not here: whether anyone wants it."""

from __future__ import annotations

from dataclasses import dataclass

from atelier_dagster.gitio import Git, GitFailed, branch_ref, check_commit, contains, merge_trees, ref_commit
from atelier_dagster.ports import MergeAnswer

ZERO = "0" * 40


@dataclass(frozen=True)
class Merger:
    """Merges into branches of one bare repository; with `must_contain_base`, only what has the whole base in it."""

    git: Git
    must_contain_base: bool = True

    async def tip(self, branch: str) -> str | None:
        """Commit at a branch's tip, or None."""
        return await ref_commit(self.git, branch_ref(branch))

    async def contains(self, commit: str, ancestor: str) -> bool:
        """Whether `ancestor` is `commit` or in its history."""
        return await contains(self.git, commit, ancestor)

    async def merge(self, head: str, base_branch: str, message: str) -> MergeAnswer:
        """Merge commit `head` into a branch, once. The branch is moved only if it is still where it was looked at."""
        check_commit(head)
        base = await self.tip(base_branch)
        if base is None:
            return await self._move(base_branch, ZERO, head)
        if await self.contains(base, head):
            return MergeAnswer(merged=True, commit=await self.merge_commit(head, base))
        if self.must_contain_base and not await self.contains(head, base):
            reason = f"{base_branch} has commits that the pull request does not have"
            return MergeAnswer(merged=False, refusal="base_moved", reason=reason)
        tree, problem = await self._tree(base, head)
        if problem:
            return MergeAnswer(merged=False, refusal="forge", reason=problem)
        out = await self.git.run("commit-tree", "-p", base, "-p", head, "-F", "-", tree, stdin=_text(message))
        return await self._move(base_branch, base, out.text)

    async def merge_commit(self, head: str, base: str) -> str:
        """The commit by which `head` came into `base`: a merge with it as a later parent, else `head` itself."""
        out = await self.git.run("rev-list", "--first-parent", "--merges", "--parents", f"{head}..{base}")
        for line in out.text.splitlines():
            commit, *parents = line.split()
            if head in parents[1:]:
                return commit
        return head

    async def _tree(self, base: str, head: str) -> tuple[str, str]:
        if await self.contains(head, base):
            return f"{head}^{{tree}}", ""
        merged = await merge_trees(self.git, base, head)
        return merged.tree, f"conflicts in {', '.join(merged.conflicts[:20])}" if merged.conflicts else ""

    async def _move(self, branch: str, old: str, new: str) -> MergeAnswer:
        try:
            await self.git.run("update-ref", "-m", "merge pull request", branch_ref(branch), new, old)
        except GitFailed as error:
            if await self.tip(branch) == (None if old == ZERO else old):
                raise
            return MergeAnswer(merged=False, refusal="base_moved", reason=f"{branch} moved meanwhile: {error.message}")
        return MergeAnswer(merged=True, commit=new)


def _text(message: str) -> bytes:
    return (message.replace("\0", "").strip() + "\n").encode("utf-8", "backslashreplace")
