"""Takes a repository into the local forge: branches and tags, nothing else. Not here: tickets or pull requests."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from atelier_dagster.factory.errors import InvalidInput, Refused
from atelier_dagster.factory.ticket import RepoRef
from atelier_dagster.files import file_lock
from atelier_dagster.forges.local._store import Store
from atelier_dagster.gitio import Git, GitFailed, branch_ref, check_remote_url

_SYMREF = re.compile(r"ref: refs/heads/(\S+)\tHEAD")
_MINUTES_10 = 600.0


@dataclass(frozen=True)
class TakenIn:
    """A repository as the local forge holds it. `notes` are things that work less well than a person may expect."""

    repo: RepoRef
    path: Path
    default_branch: str
    branches: tuple[str, ...]
    created: bool
    notes: tuple[str, ...] = ()


async def take_in(store: Store, repo: RepoRef, source: str | Path | None, default_branch: str) -> TakenIn:
    """Create the repository below the root, from a path, a URL or nothing. One that exists is left as it is.

    Raises `InvalidInput`, `Refused` (what cannot work, with the reason), or an error of git.
    """
    place = store.place(repo)
    branch_ref(default_branch)
    url = None if source is None else _address(source)
    store.root.mkdir(parents=True, exist_ok=True)
    async with file_lock(store.root / ".lock", timeout=_MINUTES_10):
        if (place / "repo.git" / "HEAD").is_file():
            return await _describe(repo, place / "repo.git", created=False)
        _check_nesting(store, place)
        with tempfile.TemporaryDirectory(dir=store.root, prefix=".init-") as scratch:
            bare = Path(scratch) / "repo.git"
            await Git(bare).run("init", "--quiet", "--bare", "--template=", str(bare))
            await Git(bare).run("symbolic-ref", "HEAD", branch_ref(default_branch))
            if url is not None:
                await _copy(bare, url, default_branch)
            found = await _describe(repo, bare, created=True)
            place.mkdir(parents=True, exist_ok=True)
            (place / "tickets").mkdir(exist_ok=True)
            (place / "pulls").mkdir(exist_ok=True)
            shutil.rmtree(place / "repo.git", ignore_errors=True)
            bare.rename(place / "repo.git")
    return TakenIn(repo, place / "repo.git", found.default_branch, found.branches, created=True, notes=found.notes)


def _address(source: str | Path) -> str:
    text = str(source)
    path = Path(text)
    if isinstance(source, Path) or ("://" not in text and path.exists()):
        if not path.exists():
            raise InvalidInput(f"{path} does not exist", fix="give the path or URL of a git repository")
        return str(path.resolve())
    return check_remote_url(text)


def _check_nesting(store: Store, place: Path) -> None:
    for parent in place.relative_to(store.root).parents:
        if parent != Path() and (store.root / parent / "repo.git").exists():
            raise InvalidInput(f"{parent} is a repository; another cannot lie inside it", fix="choose another owner")


async def _copy(bare: Path, url: str, default_branch: str) -> None:
    git = Git(bare, timeout=_MINUTES_10)
    _refuse_unusable(url)
    listed = await git.run("ls-remote", "--symref", "--", url, "HEAD")
    try:
        await git.run(
            "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", url,
            "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*",
        )  # fmt: skip
    except GitFailed as error:
        raise _explained(error) from error
    wanted = _SYMREF.search(listed.text)
    branch = wanted[1] if wanted else await _unborn_head(url)
    branches = await _branches(git)
    if branch not in branches and branches:
        branch = _choose(branches, default_branch)
    await git.run("symbolic-ref", "HEAD", branch_ref(branch or default_branch))
    await _refuse_lfs(git, branch if branch in branches else "")


def _refuse_unusable(url: str) -> None:
    if not url.startswith("/"):
        return
    for git_dir in (Path(url), Path(url) / ".git"):
        if (git_dir / "shallow").is_file():
            raise Refused(
                f"{url} is a shallow clone: its history is cut off",
                fix="run `git fetch --unshallow` there first",
                code="SHALLOW_REPOSITORY",
            )


def _explained(error: GitFailed) -> GitFailed | Refused:
    if "shallow" in error.message:
        return Refused(error.message, fix="take in a complete clone", code="SHALLOW_REPOSITORY")
    if "object format" in error.message or "sha256" in error.message:
        return Refused(error.message, fix="repositories with SHA-256 names are not supported", code="SHA256_REPOSITORY")
    return error


async def _unborn_head(url: str) -> str:
    """The branch that an empty repository's first commit would make; only a local one can be asked."""
    if not url.startswith("/"):
        return ""
    for git_dir in (Path(url), Path(url) / ".git"):
        if (git_dir / "HEAD").is_file():
            out = await Git(git_dir).run("symbolic-ref", "--quiet", "HEAD", ok=(0, 1))
            return out.text.removeprefix("refs/heads/")
    return ""


def _choose(branches: tuple[str, ...], wanted: str) -> str:
    if wanted in branches:
        return wanted
    if len(branches) == 1:
        return branches[0]
    raise Refused(
        "the repository says no default branch, and has several",
        fix=f"name one of: {', '.join(branches[:10])}",
        code="NO_DEFAULT_BRANCH",
    )


async def _branches(git: Git) -> tuple[str, ...]:
    out = await git.run("for-each-ref", "--format=%(refname)", "refs/heads/")
    return tuple(line.removeprefix("refs/heads/") for line in out.text.splitlines())


async def _refuse_lfs(git: Git, branch: str) -> None:
    if not branch:
        return
    pattern = ["-e", "filter[[:space:]]*=[[:space:]]*lfs", branch_ref(branch), "--", ":(glob)**/.gitattributes"]
    found = await git.run("grep", "-l", "-z", *pattern, ok=(0, 1))
    if found.stdout:
        raise Refused(
            f"branch {branch} keeps files in Git LFS, which workshops do not have: agents would see and break pointers",
            fix="move the files into git (git lfs migrate export), or choose a repository without LFS",
            code="LFS_REPOSITORY",
        )


async def _describe(repo: RepoRef, bare: Path, *, created: bool) -> TakenIn:
    git = Git(bare)
    head = (await git.run("symbolic-ref", "HEAD")).text.removeprefix("refs/heads/")
    branches = await _branches(git)
    notes: list[str] = []
    if not branches:
        notes.append("the repository is empty: the first ticket creates its branch")
    elif (await git.run("ls-tree", "-z", branch_ref(head), "--", ".gitmodules", ok=(0, 128))).stdout:
        notes.append("submodules are not fetched: agents see their directories empty, and their pins stay as they are")
    return TakenIn(repo, bare, head, branches, created, tuple(notes))
