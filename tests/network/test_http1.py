"""Reading of requests: what is ambiguous or oversized is refused."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier_dagster.network.http1 import BadRequest, parse_head, read_body, read_request


def reader(data: bytes) -> asyncio.StreamReader:
    found = asyncio.StreamReader()
    found.feed_data(data)
    found.feed_eof()
    return found


async def test_a_request_with_a_body() -> None:
    stream = reader(b"POST /v1/x?y HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nX-A:  b c \r\n\r\nabcd")
    request = await read_request(stream)
    assert request is not None
    assert (request.method, request.target, request.get("x-a"), request.length) == ("POST", "/v1/x?y", "b c", 3)
    assert await read_body(stream, request, 10) == b"abc"


async def test_a_chunked_body() -> None:
    stream = reader(
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: x\r\n\r\n"
    )
    request = await read_request(stream)
    assert request is not None
    assert await read_body(stream, request, 10) == b"abcde"


@pytest.mark.parametrize(
    "head",
    [b"GET / HTTP/2\r\n\r\n", b"GET  / HTTP/1.1\r\n\r\n", b"get / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nA : b\r\n\r\n",
     b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", b"GET / HTTP/1.1\nA: b\r\n\r\n", b"GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n",
     b"GET / HTTP/1.1\r\nA\r\n\r\n", b"GET / HTTP/1.1\r\nA: \x00\r\n\r\n", b"GET /\r\n\r\n", b"\r\n\r\n"],
)  # fmt: skip
def test_malformed_heads(head: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_head(head)


@pytest.mark.parametrize(
    "headers",
    [b"Content-Length: 1\r\nContent-Length: 2", b"Content-Length: 1\r\nTransfer-Encoding: chunked",
     b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: identity", b"Content-Length: -1", b"Content-Length: +1",
     b"Content-Length: 0x1", b"Content-Length: 1, 1", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"],
)  # fmt: skip
def test_ambiguous_lengths(headers: bytes) -> None:
    request = parse_head(b"POST / HTTP/1.1\r\n" + headers + b"\r\n\r\n")
    with pytest.raises(BadRequest):
        _ = request.length


@pytest.mark.parametrize("body", [b"g\r\n", b"-1\r\nx", b"1\r\nab\r\n0\r\n\r\n", b"5\r\nabc", b"\r\n", b"1" * 20])
async def test_malformed_chunks(body: bytes) -> None:
    stream = reader(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    request = await read_request(stream)
    assert request is not None
    with pytest.raises(BadRequest):
        await read_body(stream, request, 1000)


async def test_size_limits() -> None:
    stream = reader(b"POST / HTTP/1.1\r\nContent-Length: 11\r\n\r\n" + b"x" * 11)
    request = await read_request(stream)
    assert request is not None
    with pytest.raises(BadRequest) as refused:
        await read_body(stream, request, 10)
    assert refused.value.status == 413
    with pytest.raises(BadRequest) as refused:
        await read_request(reader(b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n"))
    assert refused.value.status == 431


async def test_ends_of_streams() -> None:
    assert await read_request(reader(b"")) is None
    with pytest.raises(BadRequest):
        await read_request(reader(b"GET / HT"))


@given(st.binary(max_size=300))
def test_garbage_is_refused_and_nothing_else(data: bytes) -> None:
    try:
        parse_head(data + b"\r\n\r\n")
    except BadRequest as refused:
        assert 400 <= refused.status < 500
