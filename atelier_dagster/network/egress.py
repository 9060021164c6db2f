"""HTTP proxy with an allow-list: a workshop's only way out. Not here: which hosts are allowed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from atelier_dagster.network.hosts import EgressPolicy, normalized_host
from atelier_dagster.network.http1 import (
    HOP_BY_HOP,
    BadRequest,
    Request,
    answer,
    body_parts,
    read_request,
    request_head,
)
from atelier_dagster.network.log import DecisionLog
from atelier_dagster.network.streams import ConnectFailed, Streams, close, open_direct, open_through, relay

IDLE_LIMIT = 300.0
MAX_CONNECTIONS = 256
RESOLVE_LIMIT = 10.0

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve(host: str, port: int) -> Sequence[str]:
    """Addresses of a host. Raises `ConnectFailed`."""
    try:
        async with asyncio.timeout(RESOLVE_LIMIT):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise ConnectFailed("the name cannot be resolved") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Denied(Exception):
    """The policy says no."""


@dataclass(frozen=True)
class Target:
    """Where a request wants to go, and what to send there first (nothing for CONNECT)."""

    host: str
    port: int
    path: str = ""


def target_of(request: Request) -> Target:
    """Host and port of a request. Raises `BadRequest`."""
    connect = request.method == "CONNECT"
    try:
        parts = urlsplit(f"//{request.target}" if connect else request.target)
        host, port = normalized_host(parts.hostname or ""), parts.port
    except ValueError as error:
        raise BadRequest(400, "malformed target") from error
    if host is None or parts.username is not None or (connect and (port is None or parts.path)):
        raise BadRequest(400, "malformed target")
    if connect:
        return Target(host, port or 0)
    if parts.scheme != "http":
        raise BadRequest(400, "this is a proxy: ask for an absolute http URL, or CONNECT")
    return Target(host, port or 80, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


class EgressProxy:
    """Serves CONNECT and plain HTTP to allowed hosts; each decision is logged."""

    def __init__(
        self,
        policy: EgressPolicy,
        log: DecisionLog,
        *,
        upstream: str = "",
        resolve: Resolve = resolve,
        idle: float = IDLE_LIMIT,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._policy, self._log, self._upstream = policy, log, upstream
        self._resolve, self._idle = resolve, idle
        self._free = max_connections

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection: one request, then the bytes that follow."""
        if self._free <= 0:
            writer.write(answer(503, "Service Unavailable", "too many connections"))
            await close(writer)
            return
        self._free -= 1
        try:
            await self._serve(reader, writer)
        except BadRequest as error:
            writer.write(answer(error.status, "Bad Request", str(error)))
        except ConnectionError:
            pass  # the client is gone
        finally:
            self._free += 1
            await close(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        if request is None:
            return
        target = target_of(request)
        try:
            theirs = await self._open(target)
        except Denied as error:
            self._log.add(decision="deny", method=request.method, host=target.host, port=target.port, reason=str(error))
            writer.write(answer(403, "Forbidden", f"{target.host}:{target.port} cannot be reached: {error}"))
            return
        except ConnectFailed as error:
            self._log.add(decision="fail", method=request.method, host=target.host, port=target.port, reason=str(error))
            writer.write(answer(502, "Bad Gateway", f"{target.host}:{target.port} cannot be reached: {error}"))
            return
        self._log.add(decision="allow", method=request.method, host=target.host, port=target.port)
        try:
            await self._pass(request, target, (reader, writer), theirs)
        finally:
            await close(theirs[1])

    async def _open(self, target: Target) -> Streams:
        """Connect to an allowed host, at an address that was checked after it was resolved."""
        if refusal := self._policy.refusal(target.host, target.port):
            raise Denied(refusal)
        if self._upstream:
            return await open_through(self._upstream, target.host, target.port)
        addresses = await self._resolve(target.host, target.port)
        refusals = [self._policy.address_refusal(address) for address in addresses]
        if any(refusals):
            # One bad address is enough: which one a later connection takes must not matter.
            raise Denied(next(filter(None, refusals)))
        failure = ConnectFailed("the name has no address")
        for address in addresses[:4]:
            try:
                return await open_direct(address, target.port)
            except ConnectFailed as error:
                failure = error
        raise failure

    async def _pass(self, request: Request, target: Target, ours: Streams, theirs: Streams) -> None:
        if request.method == "CONNECT":
            ours[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await relay(ours, theirs, self._idle)
            return
        sending = asyncio.ensure_future(self._send(request, target, ours[0], theirs[1]))
        try:
            await self._receive(theirs[0], ours[1])
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await sending

    async def _send(
        self, request: Request, target: Target, body: asyncio.StreamReader, out: asyncio.StreamWriter
    ) -> None:
        authority = f"[{target.host}]" if ":" in target.host else target.host
        authority += f":{target.port}" if target.port != 80 else ""
        kept = [(name, value) for name, value in request.headers if name not in {*HOP_BY_HOP, "host"}]
        chunked = request.length is None
        extra = [("transfer-encoding", "chunked")] if chunked else []
        out.write(
            request_head(request.method, target.path, [("host", authority), *kept, *extra, ("connection", "close")])
        )
        async for part in body_parts(body, request):
            out.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
            await out.drain()
        if chunked:
            out.write(b"0\r\n\r\n")
        await out.drain()

    async def _receive(self, source: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(self._idle):
                    data = await source.read(65536)
                if not data:
                    return
                out.write(data)
                await out.drain()
