"""The processes that execute runs: `once` for a single run, `serve` for a zygote that forks one process a run.

Started by `client` with `python -m`. Importing this module costs nothing: Dagster is imported where it is used.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from atelier_dagster.orchestration._warm import records
from atelier_dagster.orchestration._warm.wire import Order, Reply, read_config, receive_order, send

_HELD = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class ExecuteRun:
    """What a forked process does for an order: take the run, tell the launcher, execute."""

    order: Order
    conn: socket.socket
    output: tuple[int, ...]

    def perform(self) -> int:
        """The process' exit code: 0 once the run is finished, whatever its result."""
        _redirect(self.output)
        _settle_in(self.order)
        record = self._take()
        if record is None:
            return 0
        from atelier_dagster.orchestration._warm.internals import capture_interrupts, execute_run, open_instance

        with capture_interrupts():
            _release_signals()
            with record, open_instance(self.order.instance_ref) as instance:
                finished = execute_run(instance, self.order.run_id, os.getpid(), on_started=record.close)
        return 0 if finished else 1

    def _take(self) -> IO[str] | None:
        """Claim the run and answer. The launcher may have gone on without us, so it must be in time."""
        with self.conn:
            record, refused = None, "the order came too late"
            if time.monotonic() < self.order.deadline:
                try:
                    record = records.claim(Path(self.order.directory), self.order.run_id)
                    refused = "another process has taken the run"
                except OSError as error:
                    refused = f"the run cannot be recorded: {error}"
            send(self.conn, Reply(pid=os.getpid()) if record else Reply(refused=refused))
        return record


@dataclass(frozen=True)
class ReportDeath:
    """What a forked process does after a run's process ended before its run: say so in the event log.

    A process of its own, because the one that waits must stay without threads and open connections.
    """

    order: Order
    exit_code: int

    def perform(self) -> int:
        """The process' exit code: 0 when the run is known to be finished."""
        _settle_in(self.order)
        _release_signals()
        from atelier_dagster.orchestration._warm.internals import open_instance, report_dead_run

        with open_instance(self.order.instance_ref) as instance:
            report_dead_run(instance, self.order.run_id, self.exit_code)
        return 0


Task = ExecuteRun | ReportDeath


def fork() -> int:
    """Like os.fork, but the child starts with interrupts held back until it can turn them into a cancellation."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def after(task: Task, exit_code: int) -> ReportDeath | None:
    """What is left to do when the process of `task` has ended; None when its run is settled.

    When even the report fails the record stays, and run monitoring finds the run by it.
    """
    if exit_code == 0:
        records.forget(Path(task.order.directory), task.order.run_id)
        return None
    return ReportDeath(task.order, exit_code) if isinstance(task, ExecuteRun) else None


def once(conn: socket.socket) -> Task | None:
    """Execute the one run that comes over `conn`. Returns the task in a forked process, None in the waiting one."""
    order, output = receive_order(conn)
    task: Task | None = ExecuteRun(order, conn, tuple(output))
    while task is not None:
        pid = fork()
        if not pid:
            return task
        conn.close()
        _, status = os.waitpid(pid, 0)
        task = after(task, os.waitstatus_to_exitcode(status))
    return None


def main() -> int:
    """Leave the launcher's process group and session, then work as told by the arguments."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if sys.argv[1] == "once":
        task = once(socket.socket(fileno=int(sys.argv[2])))
    else:
        from atelier_dagster.orchestration._warm.zygote import Zygote

        task = Zygote(read_config(sys.stdin.buffer.read())).serve()
    return 0 if task is None else task.perform()


def _settle_in(order: Order) -> None:
    """Make this process what the launcher would have started: own session, its environment and directory."""
    os.setsid()
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.cwd)


def _redirect(output: tuple[int, ...]) -> None:
    """Write where the launcher writes, as a process that it started itself would."""
    with Path(os.devnull).open("r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        for target in (1, 2):
            os.dup2(output[target - 1] if len(output) >= target else nothing.fileno(), target)
    for fd in output:
        os.close(fd)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


if __name__ == "__main__":
    sys.exit(main())
