"""Memory and disk of a workshop, watched while commands run. Process count, file size and time are limits elsewhere."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from atelier_dagster.sandbox.channel import GuestError, GuestGone
from atelier_dagster.sandbox.config import BoundsConfig
from atelier_dagster.sandbox.runner import Runner

MIB = 1024 * 1024
MEMORY_INTERVAL = 0.1
DISK_INTERVAL = 1.0
ENTRY_BYTES = 1024
"""What a directory entry counts beside its blocks, so that empty files are bounded as well."""
HOST_RESERVE = 256 * MIB
"""Free space on the host's disk that no workshop may use up."""


async def watch_processes(runner: Runner, bounds: BoundsConfig) -> None:
    """Kill the command that uses most when all together use more than a limit. Ends with the sandbox."""
    while True:
        await runner.busy.wait()
        await asyncio.sleep(MEMORY_INTERVAL)
        try:
            reply, _, _ = await runner.channel.call({"op": "usage"})
        except GuestGone:
            return
        except (GuestError, TimeoutError):
            continue
        usage: dict[str, list[int]] = reply["usage"]
        _judge(
            runner,
            {key: use[0] for key, use in usage.items()},
            bounds.memory_mib * MIB,
            f"memory limit of {bounds.memory_mib} MiB reached",
        )
        _judge(
            runner,
            {key: use[1] for key, use in usage.items()},
            bounds.processes,
            f"limit of {bounds.processes} processes reached",
        )


def _judge(runner: Runner, usage: dict[str, int], limit: int, reason: str) -> None:
    if sum(usage.values()) > limit:
        heaviest = max(usage, key=lambda key: usage[key])
        if (command := runner.running.get(heaviest)) is not None:
            runner.kill(command, reason)


async def watch_disk(runner: Runner, limit_mib: int, writable: Sequence[Path]) -> None:
    """Kill what runs when the writable directories grow beyond the limit, or the host's disk is full."""
    wait, before = DISK_INTERVAL, 0.0
    while True:
        await runner.busy.wait()
        await asyncio.sleep(wait)
        started = time.monotonic()
        used = await asyncio.to_thread(disk_usage, writable)
        # A large tree is walked less often, so that watching never costs more than a tenth of a core.
        wait = max(DISK_INTERVAL, 10 * (time.monotonic() - started))
        # One that is over the limit but shrinking is left alone: that is how it gets below it again.
        if used > limit_mib * MIB and used > before:
            _kill_all(runner, f"disk limit of {limit_mib} MiB reached")
        elif shutil.disk_usage(writable[0]).free < HOST_RESERVE and used > before:
            _kill_all(runner, "the host's disk is full")
        before = used


def _kill_all(runner: Runner, reason: str) -> None:
    for command in list(runner.running.values()):
        runner.kill(command, reason)


def disk_usage(directories: Sequence[Path]) -> float:
    """Bytes on disk below some directories; infinite when a tree is too deep to be walked.

    Links are not followed; what vanishes meanwhile is not counted.
    """
    total: float = 0
    waiting = [str(directory) for directory in directories]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += _entry_usage(entry)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return math.inf
    return total


def _entry_usage(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512 + ENTRY_BYTES
    except OSError:
        return 0
