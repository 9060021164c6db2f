"""Which process executes which run: one small file a run, so that it can be asked after everything was killed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from atelier_dagster.factory.errors import InvalidInput

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_PAUSE = 0.02
_KEEP_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same number.

    `started` is in clock ticks since boot (proc(5), stat, field 22); 0 where the system does not tell.
    """

    pid: int
    started: int
    boot: str

    @classmethod
    def own(cls) -> ProcessIdentity:
        """The calling process."""
        return cls(os.getpid(), _started(os.getpid()) or 0, _boot())

    @property
    def alive(self) -> bool:
        """Whether it still runs. A zombie does not."""
        return self.boot == _boot() and _started(self.pid) == self.started

    def interrupt(self) -> bool:
        """Send SIGINT. False if the process is gone; never hits another one that got its number."""
        if sys.platform != "linux":
            return self.alive and _kill(self.pid)
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            signal.pidfd_send_signal(fd, signal.SIGINT)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True


def prepare(directory: Path) -> Path:
    """Make the launcher's directory, readable by its owner alone: secrets pass through sockets in it."""
    runs = directory / "runs"
    runs.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid != os.geteuid():
        raise InvalidInput(f"{directory} belongs to another user", fix="run every Dagster process as one user")
    directory.chmod(0o700)
    return directory


def claim(directory: Path, run_id: str) -> IO[str] | None:
    """Take a run for the calling process. None if any process took it before: a run is executed at most once.

    The open record is locked. Close it once the run is STARTED: who wants to interrupt the run waits for that, as
    Dagster takes a run that is CANCELING before it has started for one that failed.
    """
    path = _path(directory, run_id)
    draft = path.with_name(f".{os.getpid()}.{path.name}")
    with contextlib.ExitStack() as undo:
        record = undo.enter_context(draft.open("w", encoding="utf-8"))
        undo.callback(draft.unlink)
        fcntl.flock(record, fcntl.LOCK_EX)
        record.write(json.dumps(asdict(ProcessIdentity.own())))
        record.flush()
        try:
            os.link(draft, path)
        except FileExistsError:
            return None
        undo.pop_all()
    draft.unlink()
    return record


def wait_until_started(directory: Path, run_id: str, limit: float) -> None:
    """Wait until the process that took a run has started it or ended, but no longer than `limit` seconds."""
    ends = time.monotonic() + limit
    try:
        with _path(directory, run_id).open("rb") as record:
            while not _try_lock(record) and time.monotonic() < ends:
                time.sleep(_PAUSE)
    except FileNotFoundError:
        return


def _try_lock(record: IO[bytes]) -> bool:
    try:
        fcntl.flock(record, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read(directory: Path, run_id: str) -> ProcessIdentity | None:
    """The process that took a run, dead or alive; None if none did or the run was settled."""
    try:
        return ProcessIdentity(**json.loads(_path(directory, run_id).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def forget(directory: Path, run_id: str) -> None:
    """Drop the record of a run that has ended."""
    _path(directory, run_id).unlink(missing_ok=True)


def sweep(directory: Path) -> None:
    """Drop records older than a week whose process is gone: their runs were ended by run monitoring."""
    for path in (directory / "runs").glob("*.json"):
        try:
            old = time.time() - path.stat().st_mtime > _KEEP_SECONDS
            if old and not ProcessIdentity(**json.loads(path.read_text(encoding="utf-8"))).alive:
                path.unlink()
        except FileNotFoundError:
            continue


def _path(directory: Path, run_id: str) -> Path:
    if not _RUN_ID.fullmatch(run_id):
        raise InvalidInput(f"{run_id!r} cannot be a run's id", fix="launch runs with the ids that Dagster makes")
    return directory / "runs" / f"{run_id}.json"


def _started(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None if sys.platform == "linux" or not _kill(pid, 0) else 0
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


def _kill(pid: int, number: int = signal.SIGINT) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _boot() -> str:
    """This boot of this machine and process namespace: outside it, process numbers mean nothing."""
    if sys.platform != "linux":
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
