"""A workshop's commands: output while they run, results kept on disk. Not here: how they are started."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field, replace
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
    """Commands by id, out of the sandbox's reach: `<key>.claim` once started, `<key>.result` once ended.

    Claiming an id is atomic, so it runs at most once.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.count = 0
        self.kept = 0

    def recover(self) -> None:
        """Give every command that has no result one that says it was lost. Called once, before any starts."""
        results = {path.stem: path.stat().st_size for path in self.root.glob("*.result")}
        self.kept = sum(results.values())
        for claim in self.root.glob("*.claim"):
            self.count += 1
            if claim.stem not in results:
                self._write(claim.stem, Outcome(reason=LOST, truncated=True))

    def claim(self, exec_id: str) -> str | None:
        """Key of a new command; None when the id was used before. Raises `OverflowError` (too many), `OSError`."""
        key = key_of(exec_id)
        if self.count >= MAX_EXECS:
            raise OverflowError(f"this workshop has run {MAX_EXECS} commands")
        try:
            with (self.root / f"{key}.claim").open("x") as file:
                file.write(exec_id)
        except FileExistsError:
            return None
        self.count += 1
        return key

    def save(self, command: Exec, outcome: Outcome) -> None:
        """Keep how a command ended. Raises `OSError`."""
        streams = command.output("stdout"), command.output("stderr")
        self._write(command.key, outcome, *streams)
        self.kept += sum(map(len, streams))
        if self.kept > MAX_OUTPUT_BYTES:
            self._prune()

    def load(self, exec_id: str) -> Exec | None:
        """A command that has ended, with its output; None when there is none of that id."""
        command = Exec(exec_id, key_of(exec_id), 0)
        try:
            command.outcome, streams = self._read(self.root / f"{command.key}.result")
        except FileNotFoundError:
            return None
        command.journal = [pair for pair in zip(("stdout", "stderr"), streams, strict=True) if pair[1]]
        return command

    def _write(self, key: str, outcome: Outcome, stdout: bytes = b"", stderr: bytes = b"") -> None:
        partial = self.root / f"{key}.partial"
        line = json.dumps({**asdict(outcome), "stdout": len(stdout)}).encode()
        partial.write_bytes(b"\n".join((line, stdout + stderr)))
        partial.replace(self.root / f"{key}.result")

    def _read(self, path: Path) -> tuple[Outcome, tuple[bytes, bytes]]:
        line, _, output = path.read_bytes().partition(b"\n")
        values = json.loads(line)
        length = values.pop("stdout")
        return Outcome(**values), (output[:length], output[length:])

    def _prune(self) -> None:
        """Drop the output of the oldest commands; their ids and outcomes stay."""
        for path in sorted(self.root.glob("*.result"), key=lambda path: path.stat().st_mtime):
            size = path.stat().st_size
            outcome, _ = self._read(path)
            self._write(path.stem, replace(outcome, truncated=True))
            self.kept -= size - (self.root / path.name).stat().st_size
            if self.kept <= MAX_OUTPUT_BYTES // 2:
                return


def key_of(exec_id: str) -> str:
    """Name of a command's files: an id may hold anything, a file name may not."""
    return hashlib.sha256(exec_id.encode()).hexdigest()[:40]
