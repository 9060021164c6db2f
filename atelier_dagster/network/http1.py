"""Just enough of HTTP/1.1 (RFC 9112) to judge and pass on a request. Strict: what is ambiguous is refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

MAX_HEAD = 32 * 1024
HEAD_LIMIT = 20.0
"""Seconds for a request head to arrive."""

_REQUEST_LINE = re.compile(rb"([A-Z]{1,20}) ([!-~]{1,8000}) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip


class BadRequest(Exception):
    """What came is no acceptable request; `status` is the answer's."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True)
class Request:
    """A request head. Header names are in lower case."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """Value of a header; "" when it is missing."""
        return next((value for key, value in self.headers if key == name), "")

    @property
    def length(self) -> int | None:
        """Body length: None when chunked. Raises `BadRequest` when it is ambiguous."""
        lengths = {value for key, value in self.headers if key == "content-length"}
        encodings = [value.lower() for key, value in self.headers if key == "transfer-encoding"]
        if encodings:
            if encodings != ["chunked"] or lengths:
                raise BadRequest(400, "ambiguous body length")
            return None
        if not lengths:
            return 0
        if len(lengths) != 1 or not (text := lengths.pop()).isascii() or not text.isdigit() or len(text) > 18:
            raise BadRequest(400, "ambiguous body length")
        return int(text)


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Next request head; None at the end of the stream. Raises `BadRequest`."""
    try:
        async with asyncio.timeout(HEAD_LIMIT):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise BadRequest(400, "incomplete request") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequest(431, "the request head is too large") from error
    except TimeoutError as error:
        raise BadRequest(408, "the request took too long") from error
    return parse_head(head)


def parse_head(head: bytes) -> Request:
    """Parse a request head. Raises `BadRequest`."""
    if len(head) > MAX_HEAD:
        raise BadRequest(431, "the request head is too large")
    line, *rest = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    matched = _REQUEST_LINE.fullmatch(line)
    if matched is None:
        raise BadRequest(400, "malformed request line")
    headers: list[tuple[str, str]] = []
    for row in rest:
        pair = _HEADER.fullmatch(row)
        if pair is None:
            raise BadRequest(400, "malformed header")
        headers.append((pair[1].decode().lower(), pair[2].decode("latin-1")))
    return Request(matched[1].decode(), matched[2].decode(), tuple(headers))


def request_head(method: str, target: str, headers: list[tuple[str, str]]) -> bytes:
    """A request head to send."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_body(reader: asyncio.StreamReader, request: Request, limit: int) -> bytes:
    """The whole body. Raises `BadRequest` when it is larger than `limit` bytes."""
    parts: list[bytes] = []
    total = 0
    async for part in body_parts(reader, request):
        total += len(part)
        if total > limit:
            raise BadRequest(413, f"the request is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


async def body_parts(reader: asyncio.StreamReader, request: Request) -> AsyncIterator[bytes]:
    """Body of a request in pieces, chunked or not. Raises `BadRequest`."""
    left = request.length
    try:
        if left is None:
            async for part in _chunks(reader):
                yield part
            return
        while left:
            part = await reader.read(min(left, 65536))
            if not part:
                raise BadRequest(400, "incomplete body")
            left -= len(part)
            yield part
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise BadRequest(400, "malformed body") from error


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := await _chunk_size(reader):
        while size:
            part = await reader.read(min(size, 65536))
            if not part:
                raise BadRequest(400, "incomplete body")
            size -= len(part)
            yield part
        if await reader.readexactly(2) != b"\r\n":
            raise BadRequest(400, "malformed chunk")
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers are dropped


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    text = (await reader.readuntil(b"\r\n")).strip().partition(b";")[0].strip()
    if not re.fullmatch(rb"[0-9A-Fa-f]{1,12}", text):
        raise BadRequest(400, "malformed chunk size")
    return int(text, 16)


def answer(status: int, reason: str, detail: str, *, media_type: str = "text/plain; charset=utf-8") -> bytes:
    """A whole response of our own, after which the connection closes."""
    body = (detail if media_type.startswith("application/json") else f"{detail}\n").encode()
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n"
        "X-Atelier-Proxy: 1\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
