"""Passing bytes between two connections, and opening the outgoing one. Not here: who may connect where."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from atelier_dagster.network.http1 import request_head

CONNECT_LIMIT = 20.0
PIECE = 65536

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ConnectFailed(OSError):
    """The outgoing connection could not be made."""


@dataclass
class Activity:
    """When a byte last passed, in either direction."""

    last: float


async def open_direct(address: str, port: int) -> Streams:
    """Connect to an address. Raises `ConnectFailed`."""
    try:
        async with asyncio.timeout(CONNECT_LIMIT):
            return await asyncio.open_connection(address, port, limit=PIECE)
    except TimeoutError as error:
        raise ConnectFailed("no connection in time") from error
    except OSError as error:
        raise ConnectFailed(error.strerror or str(error)) from error


async def open_through(proxy: str, host: str, port: int) -> Streams:
    """Connect to a host through another HTTP proxy, by CONNECT. Raises `ConnectFailed`."""
    parts = urlsplit(proxy)
    reader, writer = await open_direct(parts.hostname or "", parts.port or 3128)
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    headers = [("Host", authority)]
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers.append(("Proxy-Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
    try:
        async with asyncio.timeout(CONNECT_LIMIT):
            writer.write(request_head("CONNECT", authority, headers))
            status = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1]
        if status != b"200":
            raise ConnectFailed(f"the upstream proxy answered {status.decode(errors='replace')}")
    except BaseException as error:
        writer.close()
        if isinstance(error, (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError)):
            raise ConnectFailed("the upstream proxy did not answer as one") from error
        raise
    return reader, writer


async def start_tls(streams: Streams, host: str, context: ssl.SSLContext) -> None:
    """Make a connection a TLS one. Raises `ConnectFailed`."""
    try:
        async with asyncio.timeout(CONNECT_LIMIT):
            await streams[1].start_tls(context, server_hostname=host)
    except (OSError, TimeoutError) as error:
        raise ConnectFailed(f"no TLS with {host}: {error}") from error


async def relay(ours: Streams, theirs: Streams, idle: float) -> tuple[int, int]:
    """Pass bytes both ways until both sides have ended, or nothing passed for `idle` seconds.

    An end on one side is passed on as an end of that direction alone. The counts are (to theirs, to ours).
    """
    loop = asyncio.get_running_loop()
    activity = Activity(loop.time())
    ways = [
        asyncio.ensure_future(_one_way(ours[0], theirs[1], activity)),
        asyncio.ensure_future(_one_way(theirs[0], ours[1], activity)),
    ]
    try:
        while not all(way.done() for way in ways):
            left = activity.last + idle - loop.time()
            if left <= 0:
                break
            await asyncio.wait(ways, timeout=left)
    finally:
        for way in ways:
            way.cancel()
        counts = await asyncio.gather(*ways, return_exceptions=True)
    sent, received = (count if isinstance(count, int) else 0 for count in counts)
    return sent, received


async def _one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, activity: Activity) -> int:
    count = 0
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
            count += len(data)
            activity.last = asyncio.get_running_loop().time()
        if writer.can_write_eof():
            writer.write_eof()
    return count


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection and wait a moment for what was written to leave."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(5):
            await writer.wait_closed()
