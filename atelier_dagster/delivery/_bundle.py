"""Checks a bundle that came out of a workshop before anything of it is believed. Not here: making one."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.gitio import Git, GitFailed, GitOutputTooLarge, check_commit, check_ref, contains

_MAX_HEADER = 65_536
_HEADER_LINE = re.compile(r"([0-9a-f]{40}) (refs/\S+)")
_MAX_OBJECTS = 2_000_000
_MEMORY = 6 * 1024**3


class BundleRejected(AtelierError):
    """A workshop's bundle is not exactly the one branch that was asked for, or its objects are not sound."""

    code = "BUNDLE_REJECTED"


@dataclass(frozen=True)
class BundleLimits:
    """Bounds of what is taken from a workshop, in bytes."""

    packed: int = 200_000_000
    unpacked: int = 2_000_000_000
    file: int = 500_000_000


async def take_bundle(git: Git, data: bytes, *, ref: str, expected_parent: str, limits: BundleLimits) -> str:
    """Check a bundle and keep its objects in `git`'s repository; returns the commit, and moves no ref.

    The objects are looked at apart from the repository, as if a stranger had pushed them, and come in only whole.
    Raises `BundleRejected`.
    """
    assert git.directory is not None
    if len(data) > limits.packed:
        raise _rejected(f"it has {len(data)} bytes, more than {limits.packed}")
    head, start = _header(data, ref)
    with tempfile.TemporaryDirectory(dir=git.directory, prefix="incoming-") as scratch:
        objects = Path(scratch) / "objects"
        (objects / "pack").mkdir(parents=True)
        try:
            await _inspect(git, objects, data[start:], head, expected_parent, limits)
        except (GitFailed, GitOutputTooLarge) as error:
            raise _rejected(error.message) from error
        _keep(objects / "pack", git.directory / "objects" / "pack")
    return head


def _rejected(reason: str) -> BundleRejected:
    return BundleRejected(f"the workshop's bundle is not taken: {reason}", fix="see the agent's transcript")


def _header(data: bytes, ref: str) -> tuple[str, int]:
    """The one commit that a bundle offers for `ref`, and where its pack starts."""
    end = data.find(b"\n\n", 0, _MAX_HEADER)
    if end < 0 or not data.startswith((b"# v2 git bundle\n", b"# v3 git bundle\n")):
        raise _rejected("it is not a git bundle")
    lines = data[:end].decode("utf-8", "backslashreplace").split("\n")[1:]
    for line in lines:
        if line.startswith("@") and line != "@object-format=sha1":
            raise _rejected(f"it needs {line[:80]!r}")
    refs = [line for line in lines if not line.startswith(("-", "@"))]
    match = _HEADER_LINE.fullmatch(refs[0]) if len(refs) == 1 else None
    if match is None:
        raise _rejected(f"it has {len(refs)} refs instead of one")
    if match[2] != check_ref(ref):
        raise _rejected(f"it is of {match[2][:200]!r}, not of {ref!r}")
    return check_commit(match[1]), end + 2


async def _inspect(git: Git, objects: Path, pack: bytes, head: str, parent: str, limits: BundleLimits) -> None:
    assert git.directory is not None
    apart = {
        "GIT_OBJECT_DIRECTORY": str(objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(git.directory / "objects"),
    }
    bounded = replace(git, memory_limit=_MEMORY, env=apart)
    size = f"--max-input-size={limits.packed}"
    await bounded.run("index-pack", "--stdin", "--fix-thin", "--strict", "--threads=1", size, stdin=pack)
    kind = await bounded.run("cat-file", "-t", head)
    if kind.text != "commit":
        raise _rejected(f"it offers a {kind.text}, not a commit")
    # Walks everything that is new, and fails where an object is missing.
    listed = await bounded.run("rev-list", "--objects", "--no-object-names", head, "--not", "--all")
    if parent and not await contains(bounded, head, check_commit(parent)):
        raise _rejected(f"its history does not contain {parent}, which the work started from")
    await _check_sizes(bounded, listed.stdout, limits)


async def _check_sizes(git: Git, objects: bytes, limits: BundleLimits) -> None:
    if objects.count(b"\n") > _MAX_OBJECTS:
        raise _rejected(f"it has more than {_MAX_OBJECTS} objects")
    out = await git.run("cat-file", "--batch-check=%(objectsize)", "--buffer", stdin=objects)
    sizes = [int(line) for line in out.stdout.split()]
    if max(sizes, default=0) > limits.file:
        raise _rejected(f"it has a file of {max(sizes)} bytes, more than {limits.file}")
    if sum(sizes) > limits.unpacked:
        raise _rejected(f"its files have {sum(sizes)} bytes, more than {limits.unpacked}")


def _keep(source: Path, target: Path) -> None:
    """Move a checked pack in. The index goes last: a pack without one is not there for git."""
    target.mkdir(parents=True, exist_ok=True)
    for suffix in (".pack", ".rev", ".idx"):
        for path in source.glob(f"*{suffix}"):
            path.replace(target / path.name)
