"""Questions that any bare repository can be asked: tips, ancestry, trees, files, merges. Nothing here moves a ref."""

from __future__ import annotations

from dataclasses import dataclass, replace

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.gitio._errors import GitFailed
from atelier_dagster.gitio._names import EMPTY_TREE, check_commit, check_ref
from atelier_dagster.gitio._runner import Git

_MAX_ROOT_ENTRIES = 10_000
_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=none", "-M")


def shown(name: bytes) -> str:
    """A path as text: bytes that are not UTF-8 are written as `\\xNN`."""
    return name.decode("utf-8", "backslashreplace")


async def ref_commit(git: Git, ref: str) -> str | None:
    """Commit that a full ref names, or None."""
    out = await git.run("rev-parse", "--verify", "--quiet", f"{check_ref(ref)}^{{commit}}", ok=(0, 1))
    return out.text or None


async def contains(git: Git, commit: str, ancestor: str) -> bool:
    """Whether `ancestor` is `commit` or in its history. Raises `GitFailed` for an unknown commit."""
    argv = ("merge-base", "--is-ancestor", check_commit(ancestor), check_commit(commit))
    return (await git.run(*argv, ok=(0, 1))).code == 0


async def fork_point(git: Git, base: str, head: str) -> str:
    """Where `head`'s change over `base` starts: their merge base, or the empty tree where they share nothing."""
    if not base:
        return EMPTY_TREE
    out = await git.run("merge-base", check_commit(base), check_commit(head), ok=(0, 1))
    return out.text or EMPTY_TREE


async def root_entries(git: Git, commit: str) -> tuple[str, ...] | None:
    """Names at the root, directories with a slash; () for "" (nothing committed yet), None when it cannot be told."""
    if not commit:
        return ()
    try:
        out = await git.run("ls-tree", "-z", check_commit(commit))
    except GitFailed:
        return None
    entries = [line.partition(b"\t") for line in out.stdout.split(b"\0") if line]
    names = [shown(name) + ("/" if meta.split()[1] == b"tree" else "") for meta, _, name in entries]
    return tuple(names[:_MAX_ROOT_ENTRIES])


async def read_file(git: Git, commit: str, path: str, limit: int) -> bytes | None:
    """Content of a regular file; None when there is none, or it is a link, a directory or a submodule.

    Raises `InvalidInput` for a file of more than `limit` bytes.
    """
    if not path or "\0" in path:
        return None
    try:
        listed = await git.run("--literal-pathspecs", "ls-tree", "-z", "-l", check_commit(commit), "--", path)
    except GitFailed:
        return None
    meta, _, name = listed.stdout.partition(b"\0")[0].partition(b"\t")
    if name != path.encode("utf-8", "surrogateescape") or not meta.startswith((b"100644 ", b"100755 ")):
        return None
    _, _, blob, size = meta.split()
    if int(size) > limit:
        raise InvalidInput(f"{path!r} is larger than {limit} bytes", fix="raise the limit, or shorten the file")
    return (await replace(git, output_limit=limit).run("cat-file", "blob", blob.decode())).stdout


@dataclass(frozen=True)
class MergedTree:
    """The tree of a merge, or the paths that conflicted."""

    tree: str
    conflicts: tuple[str, ...] = ()


async def merge_trees(git: Git, ours: str, theirs: str) -> MergedTree:
    """Merge two commits without a work tree. Unrelated histories are merged too: a first commit may be made twice."""
    argv = ("merge-tree", "--write-tree", "--name-only", "--no-messages", "--allow-unrelated-histories", "-z")
    out = await git.run(*argv, check_commit(ours), check_commit(theirs), ok=(0, 1))
    tree, *paths = out.stdout.split(b"\0")
    if out.code == 0:
        return MergedTree(tree.decode("ascii"))
    return MergedTree(tree.decode("ascii"), tuple(dict.fromkeys(shown(path) for path in paths if path)) or ("?",))


@dataclass(frozen=True)
class Change:
    """A change as git tells it: unified diff, paths (old and new names of renames), and counts."""

    base: str
    """What the diff starts from: a commit, or the empty tree."""
    head: str
    text: bytes
    paths: tuple[str, ...]
    files: int
    insertions: int
    deletions: int
    binary: tuple[str, ...]


async def change(git: Git, base: str, head: str) -> Change:
    """Git's own `base...head`: what `head` changes, and nothing of what `base` did meanwhile.

    Raises `GitOutputTooLarge` for a diff above the runner's limit: it is never cut off.
    """
    start = await fork_point(git, base, head)
    numbers = await git.run("diff", *_DIFF, "--numstat", "-z", start, check_commit(head), "--")
    text = await git.run("diff", *_DIFF, start, head, "--")
    paths, files, insertions, deletions, binary = _numstat(numbers.stdout)
    return Change(start, head, text.stdout, tuple(dict.fromkeys(paths)), files, insertions, deletions, tuple(binary))


async def changed_paths(git: Git, base: str, head: str) -> tuple[str, ...]:
    """Every path that `head` touches since it left `base`, old and new names of renames included."""
    start = await fork_point(git, base, head)
    out = await git.run("diff", *_DIFF, "--numstat", "-z", start, check_commit(head), "--")
    return tuple(dict.fromkeys(_numstat(out.stdout)[0]))


async def count_changed_files(git: Git, base: str, head: str) -> int:
    """How many files `head` changes since it left `base`; a rename is one."""
    start = await fork_point(git, base, head)
    out = await git.run("diff", *_DIFF, "--name-only", "-z", start, check_commit(head), "--")
    return out.stdout.count(b"\0")


def _numstat(data: bytes) -> tuple[list[str], int, int, int, list[str]]:
    """Parse `--numstat -z`: `added TAB deleted TAB path NUL`, or for renames an empty path and two more fields."""
    paths: list[str] = []
    binary: list[str] = []
    files = insertions = deletions = 0
    fields = iter(data.split(b"\0")[:-1])
    for record in fields:
        added, deleted, name = record.split(b"\t", 2)
        names = [shown(name)] if name else [shown(next(fields)), shown(next(fields))]
        paths += names
        files += 1
        if added == b"-":
            binary.append(names[-1])
        else:
            insertions, deletions = insertions + int(added), deletions + int(deleted)
    return paths, files, insertions, deletions, binary
