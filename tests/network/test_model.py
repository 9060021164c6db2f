"""The model's reverse proxy on real sockets."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from atelier_dagster.network.model import Endpoint, ModelProxy
from tests.support.sockets import Sockets

KEY = "sk-secret"


class Upstream:
    """A model endpoint that keeps what it got; answers are released piece by piece when there are pieces."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") -> None:
        self.got = b""
        self.answer = answer
        self.pieces: asyncio.Queue[bytes] | None = None
        self.closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.got = await reader.readuntil(b"\r\n\r\n")
        head = self.got.decode().lower()
        if "content-length: " in head:
            self.got += await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
        writer.write(self.answer)
        await writer.drain()
        if self.pieces is not None:
            await self._stream(reader, writer, self.pieces)

    async def _stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces: asyncio.Queue[bytes]
    ) -> None:
        gone = asyncio.ensure_future(reader.read())
        while True:
            piece = asyncio.ensure_future(pieces.get())
            await asyncio.wait({gone, piece}, return_when=asyncio.FIRST_COMPLETED)
            if not piece.done():
                piece.cancel()
                self.closed.set()
                return
            if not piece.result():
                gone.cancel()
                return
            writer.write(piece.result())
            await writer.drain()


def proxy_for(port: int, path: str = "/v1", **options: Any) -> ModelProxy:
    proxy = ModelProxy(**options)
    proxy.endpoint = Endpoint(f"http://127.0.0.1:{port}{path}", KEY)
    return proxy


def post(path: str = "/v1/chat/completions", body: bytes = b"{}", headers: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


async def test_the_key_is_added_and_what_came_instead_is_dropped(sockets: Sockets) -> None:
    upstream = Upstream()
    port = await sockets.serve(upstream.serve)
    listening = await sockets.serve(proxy_for(port).serve)
    headers = "Authorization: Bearer mine\r\nCookie: a=b\r\nX-Api-Key: mine\r\nContent-Type: application/json\r\n"
    answer = await sockets.ask(listening, post(body=b'{"a": 1}', headers=headers))
    assert answer.endswith(b"{}")
    head = upstream.got.decode()
    assert head.startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    assert f"authorization: Bearer {KEY}\r\n" in head
    assert f"host: 127.0.0.1:{port}\r\n" in head
    assert "content-type: application/json" in head
    assert "mine" not in head
    assert "cookie" not in head
    assert head.endswith('{"a": 1}')


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/", "/openai/v1"])
async def test_paths_are_joined_to_the_base_url(sockets: Sockets, base: str) -> None:
    upstream = Upstream()
    listening = await sockets.serve(proxy_for(await sockets.serve(upstream.serve), base).serve)
    await sockets.ask(listening, b"GET /v1/models?limit=1 HTTP/1.1\r\n\r\n")
    assert upstream.got.startswith(f"GET {base.rstrip('/')}/models?limit=1 HTTP/1.1\r\n".encode())


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /key/info", 404), ("POST /v1/files", 404), ("GET /", 404), ("POST /v1/../key/generate", 404),
        ("GET /v1/models/../../key/info", 404), ("GET /v1/models/%2e%2e/x", 404), ("GET /v1/models/a%2Fb", 404),
        ("POST /v1/chat/completions/x", 404), ("POST //v1/chat/completions", 404), ("GET /v1/chat/completions", 405),
        ("DELETE /v1/models/x", 405), ("POST http://other.example/v1/models", 404), ("CONNECT a.example:443", 404),
    ],
)  # fmt: skip
async def test_only_model_routes_are_served(sockets: Sockets, line: str, status: int) -> None:
    upstream = Upstream()
    listening = await sockets.serve(proxy_for(await sockets.serve(upstream.serve)).serve)
    answer = await sockets.ask(listening, f"{line} HTTP/1.1\r\nContent-Length: 0\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 {status}".encode())
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == status
    assert upstream.got == b""


async def test_events_are_passed_on_as_they_come(sockets: Sockets) -> None:
    upstream = Upstream(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    upstream.pieces = asyncio.Queue()
    listening = await sockets.serve(proxy_for(await sockets.serve(upstream.serve)).serve)
    reader, writer = await sockets.connect(listening)
    writer.write(post())
    async with asyncio.timeout(10):
        await reader.readuntil(b"\r\n\r\n")
        for number in range(3):
            event = f"data: {number}\n\n".encode()
            await upstream.pieces.put(event)
            assert await reader.readexactly(len(event)) == event
        await upstream.pieces.put(b"")
        assert await reader.read() == b""


async def test_a_client_that_leaves_ends_the_request(sockets: Sockets) -> None:
    upstream = Upstream(b"HTTP/1.1 200 OK\r\n\r\n")
    upstream.pieces = asyncio.Queue()
    listening = await sockets.serve(proxy_for(await sockets.serve(upstream.serve)).serve)
    reader, writer = await sockets.connect(listening)
    writer.write(post())
    await reader.readuntil(b"\r\n\r\n")
    writer.close()
    async with asyncio.timeout(10):
        await upstream.closed.wait()


async def test_the_endpoints_own_refusals_pass_unchanged(sockets: Sockets) -> None:
    answer = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}"
    upstream = Upstream(answer)
    listening = await sockets.serve(proxy_for(await sockets.serve(upstream.serve)).serve)
    assert await sockets.ask(listening, post()) == answer


async def test_bodies_are_bounded(sockets: Sockets) -> None:
    upstream = Upstream()
    listening = await sockets.serve(proxy_for(await sockets.serve(upstream.serve), max_body=10).serve)
    assert (await sockets.ask(listening, post(body=b"x" * 11))).startswith(b"HTTP/1.1 413")
    assert upstream.got == b""


async def test_an_endpoint_that_cannot_be_reached_or_says_nothing(sockets: Sockets, unused_tcp_port: int) -> None:
    listening = await sockets.serve(proxy_for(unused_tcp_port).serve)
    assert (await sockets.ask(listening, post())).startswith(b"HTTP/1.1 502")
    silent = await sockets.serve(Upstream(b"").serve)
    listening = await sockets.serve(proxy_for(silent).serve)
    answer = await sockets.ask(listening, post())
    assert answer.startswith(b"HTTP/1.1 504")
    assert KEY.encode() not in answer


async def test_without_an_endpoint(sockets: Sockets) -> None:
    listening = await sockets.serve(ModelProxy().serve)
    assert (await sockets.ask(listening, post())).startswith(b"HTTP/1.1 503")


def test_the_key_is_in_no_representation() -> None:
    assert KEY not in repr(Endpoint("http://a/v1", KEY))


async def test_tls_is_verified(sockets: Sockets, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*await _certificate(tmp_path))
    port = await sockets.serve(Upstream().serve, context)
    trusting = ModelProxy(tls=lambda: ssl.create_default_context(cafile=str(tmp_path / "cert.pem")))
    for proxy, expected in ((trusting, b"HTTP/1.1 200"), (ModelProxy(), b"HTTP/1.1 502")):
        proxy.endpoint = Endpoint(f"https://localhost:{port}/v1", KEY)
        answer = await sockets.ask(await sockets.serve(proxy.serve), post())
        assert answer.startswith(expected)


async def _certificate(directory: Path) -> tuple[Path, Path]:
    cert, key = directory / "cert.pem", directory / "key.pem"
    process = await asyncio.create_subprocess_exec(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await process.wait() == 0
    return cert, key
