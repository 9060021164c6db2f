"""The supervisor's end of the socket to process 1 of the sandbox. Not here: what the requests are for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Sequence

from atelier_dagster.sandbox.frames import HEAD, FrameError, Message, pack, parse, unpack_head
from atelier_dagster.sandbox.pipes import ready

Reply = tuple[Message, bytes, list[int]]


class GuestError(Exception):
    """Process 1 refused a request; `kind` is "not_found", "invalid" or "io"."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class GuestGone(ConnectionError):
    """The sandbox ended."""


class GuestChannel:
    """Requests and replies over one socket, with file descriptors beside them; events go to a callback."""

    def __init__(self, sock: socket.socket, on_event: Callable[[Message], None]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_event = on_event
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._sending = asyncio.Lock()
        self._fds: list[int] = []

    async def call(self, message: Message, blob: bytes = b"", fds: Sequence[int] = (), timeout: float = 30.0) -> Reply:
        """Send a request and wait for its reply. Raises `GuestError`, `GuestGone`, `TimeoutError`."""
        number = next(self._ids)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            async with asyncio.timeout(timeout):
                await self._send({**message, "id": number}, blob, fds)
                reply, data, out = await future
        except (BrokenPipeError, ConnectionResetError) as error:
            raise GuestGone("the sandbox ended") from error
        finally:
            self._waiting.pop(number, None)
        if "error" in reply:
            raise GuestError(reply["error"], reply["detail"])
        return reply, data, out

    async def run(self) -> None:
        """Receive until the sandbox ends; everyone who waits is told."""
        try:
            while True:
                self._dispatch(*await self._receive())
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(GuestGone("the sandbox ended"))
            self._sock.close()

    def _dispatch(self, message: Message, blob: bytes) -> None:
        fds, self._fds = self._fds, []
        future = self._waiting.get(message.get("id", 0))
        if future is not None and not future.done():
            future.set_result((message, blob, fds))
            return
        for fd in fds:
            os.close(fd)
        if "event" in message:
            self._on_event(message)

    async def _send(self, message: Message, blob: bytes, fds: Sequence[int]) -> None:
        head, body = pack(message, blob)
        # Shielded: half a frame would make everything after it unreadable.
        await asyncio.shield(asyncio.ensure_future(self._send_whole(head, body, fds)))

    async def _send_whole(self, head: bytes, body: bytes, fds: Sequence[int]) -> None:
        held = [os.dup(fd) for fd in fds]
        try:
            async with self._sending:
                while True:
                    with contextlib.suppress(BlockingIOError):
                        socket.send_fds(self._sock, [head], held)
                        break
                    await ready(self._sock.fileno(), writing=True)
                await asyncio.get_running_loop().sock_sendall(self._sock, body)
        finally:
            for fd in held:
                os.close(fd)

    async def _receive(self) -> tuple[Message, bytes]:
        body, blob = unpack_head(await self._exactly(HEAD.size))
        return parse(await self._exactly(body)), await self._exactly(blob)

    async def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part, fds, _, _ = socket.recv_fds(
                    self._sock, min(size - len(data), 1 << 20), 8, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                await ready(self._sock.fileno(), writing=False)
                continue
            self._fds += fds
            if not part:
                raise FrameError("the sandbox closed its socket")
            data += part
        return bytes(data)
