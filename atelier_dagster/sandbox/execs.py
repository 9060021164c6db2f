"""A workshop's commands: output while they run, results kept on disk. Not here: how they are started."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from atelier_dagster.sandbox.output import BoundedOutput

MAX_EXECS = 20_000
"""Ids that one workshop remembers."""
MAX_OUTPUT_BYTES = 1024 * 1024 * 1024
"""Output of ended commands that is kept; the oldest goes first."""
LOST = "the workshop's supervisor ended while the command ran; what it did until then may have remained"


@dataclass
class Outcome:
    """How a command ended (the streams apart)."""

    exit_code: int | None = None
    timed_out: bool = False
    truncated: bool = False
    duration: float = 0.0
    reason: str = ""


@dataclass
class Exec:
    """One command: `journal` is its retained output in the order in which it came."""

    id: str
    key: str
    output_limit: int
    started: float = field(default_factory=time.monotonic)
    journal: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    outcome: Outcome | None = None
    reason: str = ""
    """Why it is being killed; the first reason counts."""
    timed_out: bool = False
    pid: int = 0
    """Of its keeper, as the sandbox counts."""
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    status: int | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.streams = {name: BoundedOutput(self.output_limit) for name in ("stdout", "stderr")}

    def feed(self, stream: str, data: bytes) -> None:
        """Take a piece of output."""
        if head := self.streams[stream].feed(data):
            self.journal.append((stream, head))
            self.announce()

    def finish(self) -> Outcome:
        """Settle the outcome from the wait status and from what was done to the command."""
        for name, stream in self.streams.items():
            if rest := stream.finish():
                self.journal.append((name, rest))
        code = None if self.reason or self.status is None else os.waitstatus_to_exitcode(self.status)
        reason = self.reason or ("its keeper was killed" if self.status is None else "")
        if code is not None and code < 0:
            code, reason = None, f"killed by signal {-code}"
        truncated = any(stream.truncated for stream in self.streams.values())
        return Outcome(code, self.timed_out, truncated, time.monotonic() - self.started, reason)

    def announce(self) -> None:
        """Wake everyone who follows."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def output(self, stream: str) -> bytes:
        """Retained output of one stream."""
        return b"".join(data for name, data in self.journal if name == stream)

    async def follow(self) -> AsyncIterator[tuple[str, bytes]]:
        """Output from the start, as it comes, until the command has ended."""
        position = 0
        while True:
            changed, ended = self._changed, self.outcome is not None
            while position < len(self.journal):
                yield self.journal[position]
                position += 1
            if ended:
                return
            await changed.wait()


class ExecStore:
    """Directories of commands by id, out of the sandbox's reach. Claiming an id is atomic, so it runs at most once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.count = 0
        self.kept = 0

    def recover(self) -> None:
        """Give every command that has no result one that says it was lost. Called once, before any starts."""
        for directory in self._by_age():
            self.count += 1
            if not (directory / "result.json").exists():
                self._write(directory, {**asdict(Outcome(reason=LOST)), "id": self._id(directory)})
            self.kept += self._size(directory)

    def claim(self, exec_id: str) -> Path | None:
        """Directory of a new command; None when the id was used before. Raises `OverflowError`: too many."""
        directory = self._directory(exec_id)
        if directory.exists():
            return None
        if self.count >= MAX_EXECS:
            raise OverflowError(f"this workshop has run {MAX_EXECS} commands")
        directory.mkdir()
        self.count += 1
        (directory / "id").write_text(exec_id)
        return directory

    def save(self, command: Exec, outcome: Outcome) -> None:
        """Keep how a command ended. Raises `OSError`."""
        directory = self._directory(command.id)
        for name in command.streams:
            data = command.output(name)
            (directory / name).write_bytes(data)
            self.kept += len(data)
        self._write(directory, {**asdict(outcome), "id": command.id})
        self._prune()

    def load(self, exec_id: str) -> Exec | None:
        """A command that has ended, with its output; None when there is none of that id."""
        directory = self._directory(exec_id)
        try:
            values = json.loads((directory / "result.json").read_text())
        except FileNotFoundError:
            return None
        values.pop("id")
        command = Exec(exec_id, directory.name, 0)
        command.outcome = Outcome(**values)
        for name in ("stdout", "stderr"):
            if (directory / name).exists():
                command.journal.append((name, (directory / name).read_bytes()))
            else:
                command.outcome.truncated = True
        return command

    def _directory(self, exec_id: str) -> Path:
        return self.root / hashlib.sha256(exec_id.encode()).hexdigest()[:40]

    def _id(self, directory: Path) -> str:
        path = directory / "id"
        return path.read_text() if path.exists() else ""

    def _write(self, directory: Path, values: dict[str, object]) -> None:
        partial = directory / "result.partial"
        partial.write_text(json.dumps(values))
        partial.replace(directory / "result.json")

    def _by_age(self) -> list[Path]:
        return sorted((path for path in self.root.iterdir()), key=lambda path: path.stat().st_mtime)

    def _size(self, directory: Path) -> int:
        return sum((directory / name).stat().st_size for name in ("stdout", "stderr") if (directory / name).exists())

    def _prune(self) -> None:
        """Drop the output of the oldest commands; their ids and outcomes stay."""
        if self.kept <= MAX_OUTPUT_BYTES:
            return
        for directory in self._by_age():
            size = self._size(directory)
            if not size or not (directory / "result.json").exists():
                continue
            for name in ("stdout", "stderr"):
                (directory / name).unlink(missing_ok=True)
            self.kept -= size
            if self.kept <= MAX_OUTPUT_BYTES // 2:
                return
