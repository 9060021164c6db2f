"""Servers and connections on real sockets, closed at the end of a test."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Sockets:
    """Opens servers and connections."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def serve(self, handler: Handler, tls: ssl.SSLContext | None = None) -> int:
        """Serve on a free port of 127.0.0.1."""

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await handler(reader, writer)
            finally:
                await close(writer)

        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
        self._stack.callback(server.close)
        return server.sockets[0].getsockname()[1]

    async def connect(self, port: int) -> Streams:
        """Connect to 127.0.0.1."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._stack.push_async_callback(close, writer)
        return reader, writer

    async def ask(self, port: int, data: bytes) -> bytes:
        """Send, and read until the other side closes."""
        reader, writer = await self.connect(port)
        writer.write(data)
        async with asyncio.timeout(10):
            return await reader.read()


async def close(writer: asyncio.StreamWriter) -> None:
    """Close, whatever the other side has done."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
