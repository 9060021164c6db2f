"""Scopes: gitignore-style globs of the paths a task may change, and whether two can meet. Not here: plans.

`*`, `?` and `**` are special. Brackets are not: routers name files `[id].tsx`, and a plan that names one means it.
A plain name (`src/`, `README.md`) is the one at the root; a pattern without a slash (`*.py`) holds at any depth.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from pathspec import GitIgnoreSpec

_ANY = "**"
"""A segment that stands for any number of path components, none included."""
_LONGEST = 512


def normalized(glob: str) -> str:
    """A glob in one spelling: no `./`, no doubled slashes, `.` as `**`. What it matches stays the same."""
    anchored = glob.strip().startswith(("/", "./")) or not set(glob) & set("*?")
    parts = [part for part in glob.strip().split("/") if part not in ("", ".")]
    if not parts:
        return _ANY
    parts = [_ANY if len(part) > 1 and not part.strip("*") else re.sub(r"\*+", "*", part) for part in parts]
    folder = glob.strip().endswith("/")
    text = "/".join(parts) + ("/" if folder else "")
    return f"/{text}" if anchored and (len(parts) == 1) else text


def fault(glob: str) -> str:
    """Why a glob cannot be a scope; "" when it can."""
    if not glob.strip():
        return "is empty"
    if len(glob) > _LONGEST:
        return f"is longer than {_LONGEST} characters"
    if glob.lstrip().startswith(("!", "#")):
        return "starts with '!' or '#'"
    if ".." in glob.split("/"):
        return "leaves the repository"
    if "\\" in glob or any(ord(char) < 32 for char in glob):
        return "has a backslash or a control character"
    return ""


def is_catch_all(glob: str) -> bool:
    """Whether it matches (nearly) everything: nothing in it names anything."""
    return not set(normalized(glob)) - set("*?/.")


def in_scope(path: str, scope: Sequence[str]) -> bool:
    """Whether a changed path is inside any of the globs. A glob that names a folder takes in all that is below it."""
    return _spec(tuple(normalized(glob) for glob in scope if not fault(glob))).match_file(path)


@lru_cache(maxsize=256)
def _spec(globs: tuple[str, ...]) -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(glob.replace("[", r"\[").replace("]", r"\]") for glob in globs)


def overlap(one: str, other: str) -> bool:
    """Whether some path can match both globs. Exact: decided on components, not by samples."""
    return _meet(_segments(normalized(one)), _segments(normalized(other)))


@lru_cache(maxsize=4096)
def _segments(glob: str) -> tuple[str, ...]:
    """The glob as path components from the root, everything below a match included."""
    parts = [part for part in glob.split("/") if part]
    floating = len(parts) == 1 and not glob.startswith("/")
    # What ends in a slash, or in `/**`, matches below a folder but never the folder's own name.
    below = glob.endswith("/") or parts[-1] == _ANY
    body = parts[:-1] if parts[-1] == _ANY else parts
    return (*([_ANY] if floating else []), *body, *(["*"] if below else []), _ANY)


def _meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two sequences of components have a common path: dynamic programming from the end, linear in each."""
    row = [False] * (len(other) + 1)
    for i in range(len(one), -1, -1):
        below, row = row, [False] * (len(other) + 1)
        for j in range(len(other), -1, -1):
            mine, theirs = one[i : i + 1], other[j : j + 1]
            if not mine and not theirs:
                row[j] = True
            elif mine == (_ANY,):
                row[j] = below[j] or (bool(theirs) and row[j + 1])
            elif theirs == (_ANY,):
                row[j] = row[j + 1] or (bool(mine) and below[j])
            elif mine and theirs:
                row[j] = below[j + 1] and _components_meet(mine[0], theirs[0])
    return row[0]


@lru_cache(maxsize=65536)
def _components_meet(one: str, other: str) -> bool:
    """Whether two patterns of one component (`*`, `?`) match a common name."""
    if not set(one + other) & set("*?"):
        return one == other
    row = [False] * (len(other) + 1)
    for i in range(len(one), -1, -1):
        below, row = row, [False] * (len(other) + 1)
        for j in range(len(other), -1, -1):
            mine, theirs = one[i : i + 1], other[j : j + 1]
            if not mine and not theirs:
                row[j] = True
            elif mine == "*":
                row[j] = below[j] or (bool(theirs) and row[j + 1])
            elif theirs == "*":
                row[j] = row[j + 1] or (bool(mine) and below[j])
            elif mine and theirs:
                row[j] = below[j + 1] and ("?" in (mine, theirs) or mine == theirs)
    return row[0]
