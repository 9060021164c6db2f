"""Client of a local workshop's supervisor: starting it, and asking it. Not here: what a workshop is."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

from atelier_dagster.factory.errors import InvalidInput, NotFound, TimedOut, Unavailable, WorkshopFailed
from atelier_dagster.sandbox.config import SupervisorConfig
from atelier_dagster.sandbox.frames import FrameError, Message, read_frame, write_frame
from atelier_dagster.sandbox.places import Places, short_path, tail

PROGRAM = Path(__file__).with_name("_supervise.py")
START_LIMIT = 60.0
REPLY_LIMIT = 60.0
BUSY = 75


class SupervisorGone(Exception):
    """The supervisor does not run, or ended while it was asked."""


async def run_program(config: SupervisorConfig, *arguments: str) -> tuple[int, str]:
    """Run the supervisor's program with a configuration. Gives exit code and output. Raises `TimedOut`."""
    process = await asyncio.create_subprocess_exec(
        config.python, "-I", "-S", str(PROGRAM), *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}, cwd="/",
    )  # fmt: skip
    try:
        async with asyncio.timeout(START_LIMIT):
            output, _ = await process.communicate(config.dump())
    except (TimeoutError, asyncio.CancelledError) as error:
        process.kill()
        await process.wait()
        if isinstance(error, asyncio.CancelledError):
            raise
        raise TimedOut(f"the supervisor of {config.directory} did not start within {START_LIMIT:g} s") from error
    return process.returncode or 0, output.decode(errors="replace").strip()


async def start(config: SupervisorConfig) -> None:
    """Start the supervisor; one that runs already is fine. Raises `WorkshopFailed`, `TimedOut`."""
    code, output = await run_program(config)
    if code not in {0, BUSY}:
        log = tail(Places(Path(config.directory)).supervisor_log)
        raise WorkshopFailed(
            f"the workshop's supervisor did not start: {output or log or f'exit code {code}'}",
            fix="see supervisor.log in the workshop's directory",
            code="SUPERVISOR_FAILED",
        )


@asynccontextmanager
async def connection(places: Places) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to the supervisor. Raises `SupervisorGone`."""
    reader, writer = await _connect(places)
    try:
        yield reader, writer
    finally:
        writer.close()


async def _connect(places: Places) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(START_LIMIT):
        while True:
            try:
                with short_path(places.control) as path:
                    return await asyncio.open_unix_connection(path)
            except (FileNotFoundError, NotADirectoryError, ConnectionError) as error:
                # One that is alive but does not listen is just starting, or just ending.
                if not places.supervisor_alive():
                    raise SupervisorGone(str(places.root)) from error
                await asyncio.sleep(0.01)


async def ask(places: Places, message: Message, blob: bytes = b"", limit: float = REPLY_LIMIT) -> tuple[Message, bytes]:
    """One request and its reply. Raises `SupervisorGone`, `TimedOut` and what the reply says."""
    try:
        async with asyncio.timeout(limit), connection(places) as (reader, writer):
            await write_frame(writer, message, blob)
            reply, data = await read_frame(reader)
    except (ConnectionError, asyncio.IncompleteReadError, FrameError) as error:
        raise SupervisorGone(str(places.root)) from error
    except TimeoutError as error:
        raise TimedOut(f"workshop {places.root.name!r} did not answer within {limit:g} s") from error
    if "error" in reply:
        refuse(places.root.name, reply)
    return reply, data


async def converse(places: Places, message: Message, blob: bytes) -> AsyncIterator[tuple[Message, bytes]]:
    """One request and all its replies. Raises `SupervisorGone` and what a reply says."""
    try:
        async with connection(places) as (reader, writer):
            await write_frame(writer, message, blob)
            while True:
                reply, data = await read_frame(reader)
                if "error" in reply:
                    refuse(places.root.name, reply)
                yield reply, data
    except (ConnectionError, asyncio.IncompleteReadError, FrameError) as error:
        raise SupervisorGone(str(places.root)) from error


def refuse(name: str, reply: Message) -> NoReturn:
    """Raise what an error reply stands for."""
    detail = f"workshop {name!r}: {reply['detail']}"
    match reply["error"]:
        case "not_found":
            raise NotFound(detail)
        case "invalid":
            raise InvalidInput(detail)
        case "suspended":
            raise WorkshopFailed(detail, fix="resume it first", code="WORKSHOP_SUSPENDED")
        case "failed":
            raise WorkshopFailed(detail)
        case _:
            raise Unavailable(detail)


@asynccontextmanager
async def locked(path: Path, limit: float = START_LIMIT) -> AsyncGenerator[None]:
    """Hold a file lock, against other processes and other tasks of this one. Raises `TimedOut`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            await _until(lambda: _try_lock(file.fileno()), limit)
        except TimeoutError as error:
            raise TimedOut(f"{path.stem!r} is locked by another process for more than {limit:g} s") from error
        yield


async def _until(condition: Callable[[], bool], limit: float) -> None:
    """Wait for something that another process does. Raises `TimeoutError`."""
    pause = 0.001
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.05)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def end(places: Places) -> None:
    """End the supervisor, and with it everything in the sandbox. Raises `TimedOut`."""
    for number, limit in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 20.0)):
        pid = places.supervisor_pid()
        if pid is None:
            return
        try:
            os.kill(pid, number)
            await _until(lambda: not places.supervisor_alive(), limit)
        except (ProcessLookupError, TimeoutError):
            continue
        return
    if places.supervisor_alive():
        raise TimedOut(f"the supervisor of {places.root.name!r} could not be ended")
