"""Servers as child processes of the tests: free ports, waiting for readiness, and their end, whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_GRACE = 10.0
_PAUSE = 0.1


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 that nothing listens on just now."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]


@contextmanager
def stopped(process: subprocess.Popen[bytes], grace: float = _GRACE) -> Generator[subprocess.Popen[bytes]]:
    """End a process that was started with `start_new_session=True`, and its children, at the end of the block.

    `grace`: seconds between asking and killing.
    """
    try:
        yield process
    finally:
        _signal(process, signal.SIGTERM)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _signal(process, signal.SIGKILL)
            process.wait(_GRACE)


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, limit: float) -> None:
    """Ask until a server is ready; fail with the end of its log when it has ended or the limit (seconds) is over."""
    pause = threading.Event()
    deadline = time.monotonic() + limit
    while not ready():
        ended = process.poll()
        assert ended is None, f"{process.args!r} ended with {ended}:\n{_tail(log)}"
        assert time.monotonic() < deadline, f"{process.args!r} was not ready in {limit:g} s:\n{_tail(log)}"
        pause.wait(_PAUSE)


def processes_of(directory: Path) -> list[str]:
    """Command lines of other processes that have to do with a directory: named, worked in, or opened below it."""
    found: list[str] = []
    for proc in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            command = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            places = [(proc / "cwd").readlink(), *_opened_by(proc)]
            mine = int(proc.name) == os.getpid()
            if not mine and (f"{directory}/" in command or any(place.is_relative_to(directory) for place in places)):
                found.append(command)
    return found


def _opened_by(proc: Path) -> Generator[Path]:
    for descriptor in (proc / "fd").iterdir():
        with suppress(OSError):
            yield descriptor.readlink()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _tail(log: Path) -> str:
    return log.read_bytes()[-4000:].decode(errors="replace")
