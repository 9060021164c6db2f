"""Runs commands in the sandbox through its process 1, in time and with their output bounded. Not here: ids, sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Mapping

from atelier_dagster.sandbox.channel import GuestChannel, GuestError, GuestGone
from atelier_dagster.sandbox.config import BoundsConfig
from atelier_dagster.sandbox.execs import Exec
from atelier_dagster.sandbox.frames import Message
from atelier_dagster.sandbox.pipes import drain, feed_all, pipe

KILL_GRACE = 5.0
"""Seconds a keeper has to kill its tree, and again for the harder way."""
DRAIN_LIMIT = 2.0
"""Seconds for pipes to close after a command and all that it started have ended."""


def limits(bounds: BoundsConfig, *, own_user: bool) -> dict[str, int]:
    """Limits of each command's processes.

    Processes (threads included) are counted by the kernel for the whole workshop: per user namespace since Linux 5.14,
    per user before, where it is of no use unless the user is the workshop's own.
    """
    counted = own_user or counts_per_namespace(os.uname().release)
    found = {
        **({"RLIMIT_NPROC": bounds.processes} if counted else {}),
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": bounds.disk_mib * 1024 * 1024,
        "RLIMIT_NOFILE": 65536,
    }
    return found | ({"RLIMIT_CPU": bounds.cpu_seconds} if bounds.cpu_seconds else {})


def shared_memory(bounds: BoundsConfig) -> int:
    """Bytes of /dev/shm: a quarter of the memory, 64 to 512 MiB."""
    return min(max(bounds.memory_mib // 4, 64), 512) * 1024 * 1024


def counts_per_namespace(release: str) -> bool:
    """Whether a kernel counts processes per user namespace."""
    numbers = [int(part) for part in re.findall(r"\d+", release)[:2]]
    return numbers >= [5, 14]


class Timer:
    """A time limit that does not run while the workshop is suspended."""

    def __init__(self, seconds: float, expired: Callable[[], None]) -> None:
        self._left, self._expired = seconds, expired
        self._handle: asyncio.TimerHandle | None = None
        self.resume()

    def pause(self) -> None:
        """Stop the clock."""
        if self._handle is not None:
            self._left = max(self._handle.when() - asyncio.get_running_loop().time(), 0)
            self._handle.cancel()
            self._handle = None

    def resume(self) -> None:
        """Let the clock go on."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(self._left, self._expired)


class Runner:
    """All commands that run now."""

    def __init__(self, channel: GuestChannel, limits: Mapping[str, int]) -> None:
        self.channel = channel
        self.running: dict[str, Exec] = {}
        self.busy = asyncio.Event()
        """Set while a command runs."""
        self._limits = dict(limits)
        self._timers: dict[str, Timer] = {}
        self._kills: set[asyncio.Task[None]] = set()

    def on_event(self, event: Message) -> None:
        """An event of process 1: the end of a command."""
        command = self.running.get(event.get("exec", ""))
        if command is not None:
            command.status = event["status"]
            command.exited.set()

    async def run(
        self, command: Exec, argv: list[str], env: Mapping[str, str], cwd: str, stdin: bytes | int, timeout: float
    ) -> None:
        """Run to the end; the caller settles the outcome with `command.finish()`."""
        self.running[command.key] = command
        self.busy.set()
        try:
            with contextlib.ExitStack() as ends:
                drains = await self._start(command, argv, env, cwd, stdin, ends)
                self._timers[command.key] = Timer(timeout, lambda: self._time_out(command, timeout))
                try:
                    await command.exited.wait()
                    await asyncio.wait(drains, timeout=DRAIN_LIMIT)
                finally:
                    for drain in drains:
                        drain.cancel()
                    await asyncio.gather(*drains, return_exceptions=True)
        except (GuestGone, GuestError, TimeoutError, OSError) as error:
            command.reason = command.reason or f"could not be started: {error}"
        finally:
            self.running.pop(command.key, None)
            if not self.running:
                self.busy.clear()
            if (timer := self._timers.pop(command.key, None)) is not None:
                timer.pause()

    async def _start(
        self,
        command: Exec,
        argv: list[str],
        env: Mapping[str, str],
        cwd: str,
        stdin: bytes | int,
        ends: contextlib.ExitStack,
    ) -> list[asyncio.Task[None]]:
        out, out_in = pipe(ends)
        err, err_in = pipe(ends)
        source, feed = pipe(ends)
        request = {
            "op": "spawn",
            "exec": command.key,
            "argv": argv,
            "env": dict(env),
            "cwd": cwd,
            "limits": self._limits,
        }
        given = stdin if isinstance(stdin, int) else source.fd
        reply, _, _ = await self.channel.call(request, fds=(given, out_in.fd, err_in.fd))
        command.pid = reply["pid"]
        for end in (out_in, err_in, source):
            end.close()
        data = b"" if isinstance(stdin, int) else stdin
        work = (drain(out, command, "stdout"), drain(err, command, "stderr"), feed_all(feed, data))
        return [asyncio.ensure_future(one) for one in work]

    def _time_out(self, command: Exec, timeout: float) -> None:
        command.timed_out = not command.reason
        self.kill(command, f"time limit of {timeout:g} s reached")

    def kill(self, command: Exec, reason: str) -> None:
        """Kill a command with all that it started."""
        if not command.reason:
            command.reason = reason
            task = asyncio.ensure_future(self._kill(command))
            self._kills.add(task)
            task.add_done_callback(self._kills.discard)

    async def _kill(self, command: Exec) -> None:
        for hard in (False, True):
            with contextlib.suppress(GuestGone, GuestError, TimeoutError):
                await self.channel.call({"op": "kill", "exec": command.key, "hard": hard})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(command.exited.wait(), KILL_GRACE)
                return
        command.reason += " (its processes could not be killed)"
        command.status = signal.SIGKILL
        command.exited.set()

    async def freeze(self) -> None:
        """Stop all commands and their clocks. Raises like `GuestChannel.call`."""
        for timer in self._timers.values():
            timer.pause()
        await self.channel.call({"op": "freeze"})

    async def thaw(self) -> None:
        """Undo `freeze`."""
        await self.channel.call({"op": "thaw"})
        for timer in self._timers.values():
            timer.resume()

    def abandon(self, reason: str) -> None:
        """The sandbox is gone: everything that ran in it has ended."""
        for command in list(self.running.values()):
            command.reason = command.reason or reason
            command.exited.set()
