"""Reading diffs: changed paths, sensitive ones, parts for review. Not here: making diffs, or judging them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.factory.ticket import Frozen

SECURITY_PATTERNS: tuple[str, ...] = (
    "*auth*",
    "*credential*",
    "*secret*",
    "*password*",
    "*token*",
    "*session*",
    "*.pem",
    "*.key",
    ".env*",
    "*oauth*",
    "*jwt*",
)
"""Components of a path that call for a security review."""

OPS_PATTERNS: tuple[str, ...] = (
    "*.tf",
    "migrations/",
    ".devcontainer/",
    "Dockerfile*",
    "docker-compose*",
    "*.yaml",
    "*.yml",
    "Chart.yaml",
)
"""Components of a path that call for an operations review; one that ends in a slash is a folder above the file."""

_LEFT_OUT_IF_LARGE: tuple[str, ...] = (
    "node_modules/",
    "vendor/",
    "third_party/",
    "dist/",
    "build/",
    "__snapshots__/",
    "*.lock",
    "*-lock.json",
    "*-lock.yaml",
    "go.sum",
    "*.min.js",
    "*.min.css",
    "*.map",
    "*.svg",
    "*_pb2.py",
    "*.pb.go",
)
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)")
_HEADER = "diff --git "


class FileChange(Frozen):
    """One line of `git diff --name-status`. `status` is git's letter; `old_path` is set for renames and copies."""

    status: str
    path: str
    old_path: str = ""


def parse_name_status_z(data: bytes) -> tuple[FileChange, ...]:
    """Output of `git diff --name-status -z -M`. Raises `InvalidInput` when it is cut short or not that."""
    fields = data.split(b"\0")
    if fields.pop():
        raise InvalidInput("the list of changed files ends in mid-entry", fix="ask git again")
    changes: list[FileChange] = []
    rest = iter(fields)
    for status in rest:
        letter = status[:1].decode("ascii", "replace")
        names = [next(rest, None) for _ in range(2 if letter in "RC" else 1)]
        if letter not in tuple("ACDMRTUXB") or not all(names):
            raise InvalidInput(f"unexpected entry {status[:20]!r} in the list of changed files", fix="ask git again")
        paths = [_text(name) for name in names if name]
        changes.append(FileChange(status=letter, path=paths[-1], old_path=paths[0] if len(paths) > 1 else ""))
    return tuple(changes)


def touched_paths(changes: Iterable[FileChange]) -> tuple[str, ...]:
    """Every path of the changes, old names included, each once, sorted."""
    return tuple(sorted({path for change in changes for path in (change.path, change.old_path) if path}))


def changed_paths(diff_text: str) -> tuple[str, ...]:
    """Every path that a git diff touches: old and new names, deletions, binary and mode-only changes; sorted.

    For a diff's own list git's `--name-status -z` is exact; this reads what was kept of one.
    """
    return tuple(sorted({path for section in _sections(diff_text) for path in _paths(section)}))


def matching(paths: Iterable[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """Paths of which a component matches a pattern, at any depth, whatever the case."""
    return tuple(path for path in paths if any(_matches(path, pattern) for pattern in patterns))


def _matches(path: str, pattern: str) -> bool:
    *folders, name = path.lower().split("/")
    if pattern.endswith("/"):
        return pattern[:-1].lower() in folders
    return any(fnmatchcase(component, pattern.lower()) for component in (*folders, name))


# -------------------------------------------------------------------------------------------- sections of a diff


def _sections(diff_text: str) -> Iterator[str]:
    """The diff file by file. Lines of content never start like a header: git puts a sign before each."""
    starts = [match.start() for match in re.finditer(r"^diff --git ", diff_text, re.MULTILINE)]
    for start, end in pairwise([*starts, len(diff_text)]):
        yield diff_text[start:end]


def _head(section: str) -> list[str]:
    """Header lines of a file's section, up to its first hunk."""
    hunk = re.search(r"^(@@ |GIT binary patch)", section, re.MULTILINE)
    return (section[: hunk.start()] if hunk else section).split("\n")


def _paths(section: str) -> set[str]:
    lines = _head(section)
    paths: set[str] = set()
    for line in lines[1:]:
        for prefix, strip in (("rename from ", ""), ("rename to ", ""), ("copy from ", ""), ("copy to ", "")):
            if line.startswith(prefix):
                paths.add(_name(line[len(prefix) :], strip))
        for prefix, strip in (("--- ", "a/"), ("+++ ", "b/")):
            if line.startswith(prefix) and (name := _name(line[len(prefix) :], strip)) != "/dev/null":
                paths.add(name)
    return paths or _paths_of_header(lines[0][len(_HEADER) :])


def _paths_of_header(names: str) -> set[str]:
    """`a/X b/Y`: without other lines nothing was renamed, so unquoted names are equal and the middle tells."""
    names = names.removesuffix("\r")
    if quoted := _QUOTED.match(names):
        return {_name(quoted.group(0), "a/"), _name(names[quoted.end() :].strip(" "), "b/")}
    if names.endswith('"') and (start := names.find(' "')) > 0:
        return {_name(names[:start], "a/"), _name(names[start + 1 :], "b/")}
    middle = len(names) // 2
    return {_name(names[:middle], "a/"), _name(names[middle + 1 :], "b/")} - {""}


def _name(written: str, prefix: str) -> str:
    """A path as git wrote it: C-quoted, or plain with a tab after it where it holds spaces."""
    quoted = _QUOTED.fullmatch(written.rstrip("\t\r"))
    name = _unquote(quoted.group(1)) if quoted else written.removesuffix("\r").removesuffix("\t")
    return _text(name.encode("utf-8", "replace")).removeprefix(prefix)


def _unquote(text: str) -> str:
    raw = bytearray()
    position = 0
    for escape in _ESCAPE.finditer(text):
        raw += text[position : escape.start()].encode("utf-8", "replace")
        code = escape.group(1)
        raw.append(int(code, 8) & 0xFF if code[0] in "01234567" else _ESCAPES.get(code, ord(code[0]) & 0xFF))
        position = escape.end()
    raw += text[position:].encode("utf-8", "replace")
    return _text(bytes(raw))


def _text(name: bytes) -> str:
    """Paths are bytes to git; what is no UTF-8 keeps its bytes in sight as `\\xNN`."""
    return name.decode("utf-8", "backslashreplace")


# ------------------------------------------------------------------------------------------------ parts for review


def parts_for_review(diff_text: str, limit_chars: int, max_parts: int = 24) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The diff in parts of at most `limit_chars`, and the paths that no part holds.

    Files stay whole; one that is larger than a part goes in several, its header repeated. Binary files are left out
    always, generated and vendored ones only where the whole does not fit in one part, others only beyond `max_parts`.
    """
    sections = [(section, sorted(_paths(section))) for section in _sections(diff_text)]
    large = len(diff_text) > limit_chars
    pieces: list[str] = []
    left_out: list[str] = []
    for section, paths in sections:
        if _is_binary(section) or (large and matching(paths, _LEFT_OUT_IF_LARGE)):
            left_out += paths
            continue
        packed = _pack(pieces, section, limit_chars)
        if len(packed) > max_parts:
            left_out += paths
        else:
            pieces = packed
    return tuple(pieces), tuple(dict.fromkeys(left_out))


def _pack(parts: list[str], section: str, limit: int) -> list[str]:
    if parts and len(parts[-1]) + len(section) <= limit:
        return [*parts[:-1], parts[-1] + section]
    return [*parts, *_cut(section, limit)]


def _is_binary(section: str) -> bool:
    return re.search(r"^(GIT binary patch|Binary files .* differ)\r?$", section, re.MULTILINE) is not None


def _cut(section: str, limit: int) -> Iterator[str]:
    """One file in pieces at line ends (and inside a line only where it alone is too long)."""
    if len(section) <= limit:
        yield section
        return
    header = "\n".join(_head(section))[: limit // 4]
    room = max(limit - len(header) - 1, 1)
    position = len(header)
    while position < len(section):
        end = min(position + room, len(section))
        if end < len(section) and (line_end := section.rfind("\n", position, end)) > position:
            end = line_end + 1
        yield f"{header.rstrip(chr(10))}\n{section[position:end]}"
        position = end
