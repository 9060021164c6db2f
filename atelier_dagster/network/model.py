"""Reverse proxy to the model endpoint: adds the key that workshops never see. Not here: HTTP itself, the allow-list."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from atelier_dagster.network.http1 import BadRequest, Request, answer, read_body, read_request, request_head
from atelier_dagster.network.streams import ConnectFailed, Streams, close, open_direct, open_through, start_tls

MAX_BODY = 32 * 1024 * 1024
IDLE_LIMIT = 900.0
"""Seconds a model may think without sending a byte."""
MAX_CONNECTIONS = 64
ROUTES = re.compile(r"/v1/(chat/completions|completions|embeddings|responses|models(/[A-Za-z0-9._:@%/-]{1,200})?)")
PASSED = frozenset({"content-type", "accept", "user-agent", "x-request-id"})


@dataclass(frozen=True)
class Endpoint:
    """Where model requests go. `base_url` is what an OpenAI client would be given, its `/v1` included."""

    base_url: str
    api_key: str = field(default="", repr=False)

    @property
    def path(self) -> str:
        """Path of the base URL, without a slash at its end."""
        return urlsplit(self.base_url).path.rstrip("/")


class ModelProxy:
    """Serves the model routes of one workshop."""

    def __init__(
        self,
        *,
        upstream_proxy: str = "",
        idle: float = IDLE_LIMIT,
        max_body: int = MAX_BODY,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        self.endpoint = Endpoint("")
        self._upstream_proxy, self._idle, self._max_body, self._tls = upstream_proxy, idle, max_body, tls
        self._free = MAX_CONNECTIONS

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which carries one request."""
        self._free -= 1
        try:
            if self._free < 0:
                raise BadRequest(503, "too many connections")
            if (request := await read_request(reader)) is not None:
                await self._serve(request, reader, writer)
        except BadRequest as error:
            writer.write(refusal(error.status, str(error)))
        except ConnectFailed as error:
            writer.write(refusal(502, f"the model endpoint cannot be reached: {error}"))
        except ConnectionError:
            pass  # the client is gone
        finally:
            self._free += 1
            await close(writer)

    async def _serve(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        endpoint = self.endpoint
        if not endpoint.base_url:
            raise BadRequest(503, "no model endpoint is configured")
        target = target_of(request, endpoint)
        if request.get("expect").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await read_body(reader, request, self._max_body)
        theirs = await self._open(endpoint)
        try:
            theirs[1].write(self._head(request, endpoint, target, len(body)) + body)
            await theirs[1].drain()
            await self._answer(reader, theirs[0], writer)
        finally:
            await close(theirs[1])

    def _head(self, request: Request, endpoint: Endpoint, target: str, length: int) -> bytes:
        headers = [("host", urlsplit(endpoint.base_url).netloc.rpartition("@")[2]), ("connection", "close")]
        headers += [(name, value) for name, value in request.headers if name in PASSED]
        if request.method == "POST":
            headers.append(("content-length", str(length)))
        if endpoint.api_key:
            headers.append(("authorization", f"Bearer {endpoint.api_key}"))
        return request_head(request.method, target, headers)

    async def _open(self, endpoint: Endpoint) -> Streams:
        parts = urlsplit(endpoint.base_url)
        secure, host = parts.scheme == "https", parts.hostname or ""
        port = parts.port or (443 if secure else 80)
        through = self._upstream_proxy if not is_near(host) else ""
        streams = await (open_through(through, host, port) if through else open_direct(host, port))
        if secure:
            try:
                await start_tls(streams, host, self._tls())
            except ConnectFailed:
                await close(streams[1])
                raise
        return streams

    async def _answer(
        self, client: asyncio.StreamReader, source: asyncio.StreamReader, out: asyncio.StreamWriter
    ) -> None:
        """Pass the answer on byte by byte as it comes, until it ends or the client goes away."""
        gone = asyncio.ensure_future(_until_end(client))
        passing = asyncio.ensure_future(self._pass(source, out))
        try:
            await asyncio.wait({gone, passing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, passing):
                task.cancel()
            await asyncio.gather(gone, passing, return_exceptions=True)

    async def _pass(self, source: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        sent = False
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while True:
                try:
                    async with asyncio.timeout(self._idle):
                        data = await source.read(65536)
                except TimeoutError:
                    break
                if not data:
                    break
                out.write(data)
                await out.drain()
                sent = True
        if not sent:
            out.write(refusal(504, "the model endpoint ended without an answer"))


async def _until_end(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(65536):
            pass


def target_of(request: Request, endpoint: Endpoint) -> str:
    """Path at the endpoint for a request of the workshop. Raises `BadRequest` for anything but the model routes."""
    path, _, query = request.target.partition("?")
    if not ROUTES.fullmatch(path) or ".." in path or "%2e" in path.lower() or "%2f" in path.lower():
        raise BadRequest(404, "only model routes are served here")
    wanted = "GET" if path.startswith("/v1/models") else "POST"
    if request.method != wanted:
        raise BadRequest(405, f"{path} takes {wanted}")
    return endpoint.path + path.removeprefix("/v1") + (f"?{query}" if query else "")


def is_near(host: str) -> bool:
    """Whether a host is this machine or its own network, where an upstream proxy is not wanted."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or "." not in host
    return ip.is_loopback or ip.is_private


def refusal(status: int, detail: str) -> bytes:
    """An answer of our own, in the form of an OpenAI error."""
    body = json.dumps({"error": {"message": detail, "type": "atelier_proxy", "code": status}})
    return answer(status, "Refused", body, media_type="application/json")
