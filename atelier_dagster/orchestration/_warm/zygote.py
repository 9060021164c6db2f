"""A process that has imported Dagster and the definitions, and forks once for each run. It has one thread, always."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from atelier_dagster.orchestration._warm import records
from atelier_dagster.orchestration._warm.wire import (
    ConversationEnded,
    Order,
    Reply,
    ZygoteConfig,
    receive_order,
    send,
)
from atelier_dagster.orchestration._warm.worker import ExecuteRun, Task, after, fork

_TICK = 2.0
_CONVERSATION_SECONDS = 5.0
_REFUSAL_SECONDS = 60.0
# A file system's clock may lag behind the system's by a timer interrupt.
_CLOCK_SLACK_NS = 50_000_000

Stamp = tuple[int, int, int]


class Zygote:
    """Serves orders until it is idle, stale, alone, or its home is gone; then waits for the runs it started."""

    def __init__(self, config: ZygoteConfig) -> None:
        self._config = config
        self._directory = Path(config.directory)
        self._home = _identity(self._directory)
        self._listener = socket.socket(fileno=config.listener)
        self._selector = selectors.PollSelector()
        self._children: dict[int, tuple[int, Task]] = {}
        self._clients: dict[int, int] = {}
        self._had_client = False
        self._listening = True
        self._last_order = time.monotonic()
        self._loaded_at = time.time()
        self._stamps: dict[Path, Stamp | None] = {}

    def serve(self) -> Task | None:
        """Fork for every order. Returns the task in a forked process, None in the zygote when it may end."""
        refusal = self._preload()
        if refusal:
            self._refuse_next(refusal)
            return None
        self._listener.settimeout(_CONVERSATION_SECONDS)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while not self._may_end():
            for key, _ in self._selector.select(_TICK):
                task = self._handle(key.fd)
                if task is not None:
                    self._close_all()
                    return task
        return None

    # ------------------------------------------------------------------------------------------ preparation

    def _preload(self) -> str:
        """Import everything; the reason why this process must not fork, or nothing."""
        records.sweep(self._directory)
        try:
            from atelier_dagster.orchestration._warm.internals import LAZY_MODULES, load_definitions, open_instance

            for name in (*LAZY_MODULES, *self._config.preload):
                importlib.import_module(name)
                if _threads() > 1:
                    return f"importing {name} starts threads: remove it from `preload`"
            load_definitions(self._config.origin)
            with open_instance(self._config.instance_ref) as instance:
                instance.get_runs_count()
        except Exception as error:  # noqa: BLE001 - any failure of foreign code; a fresh process will show it in the run
            return f"loading failed with {type(error).__name__}: {error}"[:500]
        if _threads() > 1:
            return "importing the definitions starts threads: import what starts them inside the step that needs it"
        self._stamps = {path: _stamp(path) for path in self._sources()}
        gc.collect()
        gc.freeze()
        return ""

    def _refuse_next(self, reason: str) -> None:
        self._listener.settimeout(_REFUSAL_SECONDS)
        with contextlib.suppress(OSError), self._listener.accept()[0] as conn:
            conn.settimeout(_CONVERSATION_SECONDS)
            _, fds = receive_order(conn)
            _close(fds)
            send(conn, Reply(never=reason))

    def _sources(self) -> Iterator[Path]:
        """Files whose change makes this process stale. The standard library's cannot be among them."""
        library = sysconfig.get_path("stdlib")
        packages = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if file and (file.startswith(packages) or not file.startswith(library)):
                yield Path(file).absolute()
        yield from (Path(name).absolute() for name in self._config.watch)

    # ------------------------------------------------------------------------------------------ the loop

    def _handle(self, fd: int) -> Task | None:
        if self._listening and fd == self._listener.fileno():
            return self._answer()
        self._selector.unregister(fd)
        os.close(fd)
        if fd in self._clients:
            del self._clients[fd]
            return None
        pid, task = self._children.pop(fd)
        _, status = os.waitpid(pid, 0)
        follow_up = after(task, os.waitstatus_to_exitcode(status))
        return self._start(follow_up) if follow_up else None

    def _answer(self) -> Task | None:
        try:
            conn, _ = self._listener.accept()
        except OSError:
            return None
        with contextlib.closing(conn):
            conn.settimeout(_CONVERSATION_SECONDS)
            try:
                order, fds = receive_order(conn)
            except (OSError, ConversationEnded):
                return None
            try:
                return self._take(order, conn, tuple(fds))
            except OSError as error:
                with contextlib.suppress(OSError):
                    send(conn, Reply(refused=f"cannot fork: {error}"))
                return None
            finally:
                _close(fds)

    def _take(self, order: Order, conn: socket.socket, fds: tuple[int, ...]) -> Task | None:
        stale = self._staleness(order)
        if stale:
            self._stop_listening()
            send(conn, Reply(stale=stale))
            return None
        self._last_order = time.monotonic()
        self._remember_client(conn)
        # The child gets descriptors of its own, because those of this frame are closed on the way out.
        task = ExecuteRun(order, conn.dup(), tuple(os.dup(fd) for fd in fds))
        child = False
        try:
            child = self._start(task) is not None
        finally:
            if not child:
                task.conn.close()
                _close(task.output)
        return task if child else None

    def _start(self, task: Task) -> Task | None:
        pid = fork()
        if not pid:
            return task
        fd = os.pidfd_open(pid)
        self._children[fd] = (pid, task)
        self._selector.register(fd, selectors.EVENT_READ)
        return None

    def _remember_client(self, conn: socket.socket) -> None:
        pid = int.from_bytes(conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
        self._had_client = True
        if pid in self._clients.values():
            return
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(pid)
            self._clients[fd] = pid
            self._selector.register(fd, selectors.EVENT_READ)

    # ------------------------------------------------------------------------------------------ the end

    def _staleness(self, order: Order) -> str:
        if order.not_before > self._loaded_at:
            return "the code location was reloaded"
        now = time.time_ns()
        loaded = int(self._loaded_at * 1e9) - _CLOCK_SLACK_NS
        for path, known in self._stamps.items():
            stamp = _stamp(path)
            if stamp != known or (stamp is not None and loaded < stamp[0] < now):
                return f"{path.name} was changed"
        return ""

    def _may_end(self) -> bool:
        if _identity(self._directory) != self._home:
            self._abandon()
            return True
        if self._children:
            return False
        if not self._listening:
            return True
        idle = time.monotonic() - self._last_order > self._config.idle_seconds
        alone = self._had_client and not self._clients
        return (idle or alone) and self._leave()

    def _leave(self) -> bool:
        """Take the socket away, unless a launcher is just about to use it."""
        with (self._directory / "lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            (self._directory / self._config.socket_name).unlink(missing_ok=True)
            self._stop_listening()
        return True

    def _abandon(self) -> None:
        """The home was deleted: there is nowhere to report to, so end what still works for it."""
        for pid, _ in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGTERM)

    def _stop_listening(self) -> None:
        self._selector.unregister(self._listener)
        self._listener.close()
        self._listening = False

    def _close_all(self) -> None:
        """In a forked process: what belongs to the zygote."""
        self._selector.close()
        self._listener.close()
        _close((*self._children, *self._clients))


def _threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def _close(fds: tuple[int, ...] | list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _stamp(path: Path) -> Stamp | None:
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        stat = directory.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino
