"""Which tickets changed since when, kept beside them. Not here: what a ticket says.

Files are looked at (one `stat` each) and read only when their status changed. The cursor is a sequence number of this
index, never a time, so that clocks do not matter; a lost index starts a new epoch, in which everything is new.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.files import read_regular, write_atomic
from atelier_dagster.forges.local._documents import MAX_BYTES
from atelier_dagster.forges.local._store import NUMBERED, reading

_RACY_NS = 2_000_000_000
"""A file this young may change again without its status showing it (file systems' clocks are coarse)."""
_MAX_GONE = 1000


@dataclass
class _Entry:
    sequence: int
    digest: str
    status: list[int]
    """Of the file and of its comments' directory."""
    racy: bool
    gone: bool = False


@dataclass
class _Index:
    epoch: str = field(default_factory=lambda: secrets.token_hex(8))
    sequence: int = 0
    entries: dict[int, _Entry] = field(default_factory=dict[int, _Entry])


@dataclass(frozen=True)
class ChangeSet:
    """Numbers of tickets that changed, those whose file is gone, and the next cursor."""

    present: tuple[int, ...]
    gone: tuple[int, ...]
    cursor: str


def changes(directory: Path, cursor: str) -> ChangeSet:
    """What changed since `cursor` ("" for all). Call with the lock held. Raises `Unavailable`."""
    path = directory / ".index.json"
    index = _load(path)
    if _refresh(index, directory):
        write_atomic(path, json.dumps(asdict(index), separators=(",", ":")).encode())
    epoch, _, sequence = cursor.partition(":")
    since = int(sequence) if epoch == index.epoch and sequence.isdigit() else -1
    changed = sorted(number for number, entry in index.entries.items() if entry.sequence > since)
    return ChangeSet(
        tuple(number for number in changed if not index.entries[number].gone),
        tuple(number for number in changed if index.entries[number].gone),
        f"{index.epoch}:{index.sequence}",
    )


def _load(path: Path) -> _Index:
    """The stored index; a damaged one is replaced, which reports every ticket once more."""
    try:
        stored = cast("dict[str, Any]", json.loads(path.read_bytes()))
        entries = {int(number): _Entry(**entry) for number, entry in stored["entries"].items()}
        return _Index(str(stored["epoch"]), int(stored["sequence"]), entries)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return _Index()


def _refresh(index: _Index, directory: Path) -> bool:
    present = _statuses(directory)
    dirty = False
    for number, status in present.items():
        dirty |= _look(index, directory / f"{number}.md", number, status)
    for number in set(index.entries).difference(present):
        entry = index.entries[number]
        if not entry.gone:
            index.sequence += 1
            index.entries[number] = _Entry(index.sequence, "", [], racy=False, gone=True)
            dirty = True
    return _forget_oldest_gone(index) or dirty


def _look(index: _Index, path: Path, number: int, status: list[int]) -> bool:
    """Bring one entry up to date; True when the index must be written."""
    known = index.entries.get(number)
    if known is not None and known.status == status and not known.racy:
        return False
    racy = max(status) >= time.time_ns() - _RACY_NS
    digest = _digest(path, status[4:])
    if known is not None and not known.gone and known.digest == digest:
        if known.status == status and known.racy == racy:
            return False
        known.status, known.racy = status, racy
        return True
    index.sequence += 1
    index.entries[number] = _Entry(index.sequence, digest, status, racy)
    return True


def _statuses(directory: Path) -> dict[int, list[int]]:
    """Of every ticket, with that of its comments' directory behind it where there is one. Raises `Unavailable`."""
    files: dict[int, list[int]] = {}
    talks: dict[int, list[int]] = {}
    with reading(directory), os.scandir(directory) as entries:
        for entry in entries:
            if match := NUMBERED.fullmatch(entry.name):
                files[int(match[1])] = _status(entry.path)
            elif entry.name.isdecimal() and entry.name.isascii():
                talks[int(entry.name)] = _status(f"{entry.path}/comments")
    return {number: status + talks.get(number, []) for number, status in files.items() if status}


def _status(path: str) -> list[int]:
    try:
        status = os.lstat(path)
    except OSError:
        return []
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino]


def _digest(path: Path, comments: list[int]) -> str:
    try:
        data, _ = read_regular(path, MAX_BYTES)
    except AtelierError as error:
        data = error.code.encode() + os.fsencode(path.name)
    return hashlib.sha256(data + repr(comments).encode()).hexdigest()


def _forget_oldest_gone(index: _Index) -> bool:
    gone = sorted((entry.sequence, number) for number, entry in index.entries.items() if entry.gone)
    for _, number in gone[:-_MAX_GONE]:
        del index.entries[number]
    return len(gone) > _MAX_GONE
