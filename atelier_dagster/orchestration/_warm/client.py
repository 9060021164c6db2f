"""Finding or starting the process that executes a run: a zygote's fork, or a fresh interpreter. No Dagster."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from atelier_dagster.factory.errors import Unavailable
from atelier_dagster.orchestration._warm.wire import (
    ConversationEnded,
    Order,
    Reply,
    ZygoteConfig,
    encode,
    receive_reply,
    send,
)

_WORKER = "atelier_dagster.orchestration._warm.worker"
_SPAWN_SECONDS = 20.0
_WARM_REPLY_SECONDS = 10.0
_LOG_BYTES = 1 << 20
# Shells count and remember here; a difference does not make another environment.
_IRRELEVANT = frozenset({"_", "OLDPWD", "PWD", "SHLVL"})


class ZygoteUnavailable(Unavailable):
    """No warm process can be had: the run starts in a fresh one, which takes seconds longer."""

    code = "ZYGOTE_UNAVAILABLE"


class ZygoteRefused(ZygoteUnavailable):
    """A warm process says that it can never fork for this code: asking again soon is of no use."""

    code = "ZYGOTE_REFUSED"


class LaunchFailed(Unavailable):
    """No process could be started for a run."""

    code = "LAUNCH_FAILED"


@dataclass(frozen=True)
class Target:
    """Where and as what a run's process starts. Everything a zygote's memory depends on, except files."""

    directory: Path
    executable: str
    origin: str
    cwd: str
    preload: tuple[str, ...]
    watch: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    instance_ref: str = field(repr=False)

    @property
    def socket_name(self) -> str:
        """One zygote for each difference in what it would hold in memory, the environment that was read included."""
        relevant = {name: value for name, value in self.environment.items() if name not in _IRRELEVANT}
        parts = [self.executable, self.origin, self.cwd, self.preload, self.watch, relevant, self.instance_ref]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24] + ".sock"

    def order(self, run_id: str, *, limit: float, not_before: float = 0.0) -> Order:
        """An order for one run that must be taken within `limit` seconds."""
        return Order(
            run_id=run_id,
            directory=str(self.directory),
            cwd=self.cwd,
            deadline=time.monotonic() + limit,
            not_before=not_before,
            instance_ref=self.instance_ref,
            environment=dict(self.environment),
        )


def launch_warm(target: Target, run_id: str, *, not_before: float, idle_seconds: float, start_timeout: float) -> int:
    """Have a zygote fork for a run, starting one if there is none; the new process' pid.

    Raises `ZygoteUnavailable`; then no process has taken the run, or the run's record says which.
    """
    if sys.platform != "linux":
        raise ZygoteUnavailable("warm processes need Linux", fix="nothing needs to be done: runs start fresh")
    with _locked(target.directory, start_timeout):
        reply = _ask_running(target, run_id, not_before)
        if reply is None or reply.stale:
            _start_zygote(target, idle_seconds)
            conn = _connect(target)
            if conn is None:
                raise ZygoteUnavailable("a new zygote ended at once", fix=_see_log(target))
            reply = _ask(conn, target.order(run_id, limit=start_timeout), start_timeout)
    if reply.never:
        raise ZygoteRefused(reply.never, fix=_see_log(target))
    if reply.stale or reply.refused:
        raise ZygoteUnavailable(reply.refused or f"{reply.stale} while it was loaded", fix=_see_log(target))
    return reply.pid


def launch_fresh(target: Target, run_id: str) -> int:
    """Start a new interpreter for a run; its pid. Raises `LaunchFailed`."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            _spawn(target, ["once", str(theirs.fileno())], theirs.fileno())
        try:
            reply = _ask(ours, target.order(run_id, limit=_SPAWN_SECONDS), _SPAWN_SECONDS)
        except ZygoteUnavailable as error:
            raise LaunchFailed(f"the process ended before it took the run: {error.message}") from error
    if reply.refused:
        raise LaunchFailed(reply.refused, fix="free disk space, then launch the run again")
    return reply.pid


def _ask_running(target: Target, run_id: str, not_before: float) -> Reply | None:
    """The answer of the zygote that is there, if one is there and well."""
    conn = _connect(target)
    if conn is None:
        return None
    try:
        order = target.order(run_id, limit=_WARM_REPLY_SECONDS, not_before=not_before)
        return _ask(conn, order, _WARM_REPLY_SECONDS)
    except ZygoteUnavailable:
        # It was killed since, or is stopped. The order expires before a successor is asked.
        return None


def _ask(conn: socket.socket, order: Order, limit: float) -> Reply:
    with conn, _output() as fds:
        conn.settimeout(limit)
        try:
            send(conn, order, fds)
            return receive_reply(conn)
        except (OSError, ConversationEnded) as error:
            raise ZygoteUnavailable(f"no answer within {limit:.0f} s: {error}") from error


def _connect(target: Target) -> socket.socket | None:
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(target) as address:
            conn.settimeout(_WARM_REPLY_SECONDS)
            conn.connect(address)
    except (FileNotFoundError, ConnectionRefusedError, TimeoutError, BlockingIOError):
        conn.close()
        return None
    return conn


def _start_zygote(target: Target, idle_seconds: float) -> None:
    """Bind the socket here, so that orders queue up while the new process is still importing."""
    (target.directory / target.socket_name).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with _address(target) as address:
            listener.bind(address)
        listener.listen(64)
        config = ZygoteConfig(
            directory=str(target.directory),
            socket_name=target.socket_name,
            listener=listener.fileno(),
            origin=target.origin,
            preload=target.preload,
            watch=target.watch,
            idle_seconds=idle_seconds,
            instance_ref=target.instance_ref,
        )
        try:
            _spawn(target, ["serve"], listener.fileno(), stdin=encode(config))
        except LaunchFailed as error:
            raise ZygoteUnavailable(error.message, fix=error.fix) from error


def _spawn(target: Target, arguments: list[str], fd: int, stdin: bytes = b"") -> None:
    """Start a worker and wait until it has detached itself. Nothing secret is in its arguments."""
    command = [target.executable, "-m", _WORKER, *arguments]
    with _log(target).open("ab") as log:
        try:
            done = subprocess.run(
                command, input=stdin, stdout=log, stderr=log, pass_fds=(fd,), cwd=target.cwd,
                env=dict(target.environment), timeout=_SPAWN_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LaunchFailed(f"{target.executable} cannot be started: {error}", fix=_see_log(target)) from error
    if done.returncode != 0:
        raise LaunchFailed(f"{target.executable} ended with exit code {done.returncode}", fix=_see_log(target))


@contextlib.contextmanager
def _locked(directory: Path, limit: float) -> Generator[None]:
    """One launcher at a time decides whether a zygote has to be started."""
    ends = time.monotonic() + limit
    with (directory / "lock").open("ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends:
                    raise ZygoteUnavailable(f"another launcher held {lock.name} for {limit:.0f} s") from None
                time.sleep(0.01)
        yield


@contextlib.contextmanager
def _address(target: Target) -> Generator[str]:
    """A short name for the socket: its path may be longer than the 107 bytes that an address holds (unix(7))."""
    fd = os.open(target.directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{target.socket_name}"
    finally:
        os.close(fd)


@contextlib.contextmanager
def _output() -> Generator[tuple[int, ...]]:
    """Where this process writes; the null device in place of what is closed."""
    with Path(os.devnull).open("ab") as nothing:
        yield tuple(fd if _is_open(fd) else nothing.fileno() for fd in (1, 2))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _log(target: Target) -> Path:
    """The log of the processes that wait. Begun anew when it has grown too long."""
    log = target.directory / "workers.log"
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.unlink()
    return log


def _see_log(target: Target) -> str:
    return f"read {target.directory / 'workers.log'}"
