"""Pipes to and from commands, read and written without blocking. Not here: what the bytes mean."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass

from atelier_dagster.sandbox.execs import Exec

PIECE = 65536


@dataclass
class End:
    """One end of a pipe; closing it twice is fine."""

    fd: int

    def close(self) -> None:
        """Close it, once."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def pipe(owner: contextlib.ExitStack) -> tuple[End, End]:
    """A pipe's reading and writing ends, closed by `owner` at the latest."""
    read, write = (End(fd) for fd in os.pipe2(os.O_CLOEXEC))
    owner.callback(read.close)
    owner.callback(write.close)
    return read, write


async def drain(end: End, command: Exec, stream: str) -> None:
    """Take all output of one stream; the command never waits for whoever follows it."""
    os.set_blocking(end.fd, False)
    while True:
        try:
            data = os.read(end.fd, PIECE)
        except BlockingIOError:
            await ready(end.fd, writing=False)
            continue
        if not data:
            return
        command.feed(stream, data)
        await asyncio.sleep(0)  # a flood must not keep everything else waiting


async def feed_all(end: End, data: bytes) -> None:
    """Write standard input, then close it; a command that does not read it is its own affair."""
    os.set_blocking(end.fd, False)
    view = memoryview(data)
    try:
        while view:
            try:
                view = view[os.write(end.fd, view[:PIECE]) :]
            except BlockingIOError:
                await ready(end.fd, writing=True)
    except BrokenPipeError:
        return
    finally:
        end.close()


async def ready(fd: int, *, writing: bool) -> None:
    """Wait until a descriptor can be read or written."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(fd, lambda: future.done() or future.set_result(None))
    try:
        await future
    finally:
        remove(fd)
