"""The egress proxy on real sockets."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from atelier_dagster.network.egress import EgressProxy
from atelier_dagster.network.hosts import EgressPolicy
from atelier_dagster.network.log import DecisionLog, read_log
from tests.support.sockets import Sockets, Streams

LOOPBACK = ipaddress.ip_network("127.0.0.0/8")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send everything back, then say what was the end."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b"<end>")


class Origin:
    """An HTTP server that keeps the request it got."""

    def __init__(self) -> None:
        self.got = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.got = await reader.readuntil(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in self.got:
            self.got += await reader.readuntil(b"0\r\n\r\n")
        elif b"content-length: 4" in self.got:
            self.got += await reader.readexactly(4)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


class Proxy:
    """A proxy under test: `good.example` resolves to 127.0.0.1, which is allowed; `trick.example` to what is not."""

    def __init__(self, tmp_path: Path, sockets: Sockets, ports: Sequence[int], **options: Any) -> None:
        self.log = tmp_path / "log.jsonl"
        self.resolved: list[str] = []
        policy = EgressPolicy(("good.example", "trick.example", "mixed.example"), ports, [LOOPBACK])
        self.proxy = EgressProxy(policy, DecisionLog(self.log), resolve=self._resolve, **options)
        self._sockets = sockets

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        names = {"trick.example": ["10.0.0.1"], "mixed.example": ["127.0.0.1", "169.254.169.254"]}
        return names.get(host, ["127.0.0.1"])

    async def start(self) -> int:
        return await self._sockets.serve(self.proxy.serve)

    def decisions(self) -> list[tuple[object, object]]:
        return [(entry["decision"], entry["host"]) for entry in read_log(self.log)]


async def connected(sockets: Sockets, proxy: int, target: str) -> Streams:
    """A tunnel through the proxy."""
    reader, writer = await sockets.connect(proxy)
    writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def test_a_tunnel_passes_bytes_both_ways_and_ends_by_halves(tmp_path: Path, sockets: Sockets) -> None:
    port = await sockets.serve(echo)
    proxy = Proxy(tmp_path, sockets, [port])
    reader, writer = await connected(sockets, await proxy.start(), f"good.example:{port}")
    data = bytes(range(256)) * 8000

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    received, _ = await asyncio.gather(reader.read(-1), send())
    assert received == data + b"<end>"
    assert proxy.decisions() == [("allow", "good.example")]


async def test_plain_http_is_sent_on_without_what_was_for_the_proxy(tmp_path: Path, sockets: Sockets) -> None:
    origin = Origin()
    port = await sockets.serve(origin.serve)
    proxy = await Proxy(tmp_path, sockets, [port]).start()
    request = (
        f"POST http://good.example:{port}/a?b HTTP/1.1\r\nHost: other.example\r\nProxy-Authorization: x\r\n"
        "Connection: keep-alive\r\nContent-Length: 4\r\nX-Mine: 1\r\n\r\nbody"
    )
    assert (await sockets.ask(proxy, request.encode())).endswith(b"ok")
    head = origin.got.decode().lower()
    assert head.startswith("post /a?b http/1.1\r\n")
    assert f"host: good.example:{port}\r\n" in head
    assert "other.example" not in head
    assert "proxy-authorization" not in head
    assert head.endswith("connection: close\r\n\r\nbody")


async def test_chunked_uploads_pass(tmp_path: Path, sockets: Sockets) -> None:
    origin = Origin()
    port = await sockets.serve(origin.serve)
    proxy = await Proxy(tmp_path, sockets, [port]).start()
    head = f"POST http://good.example:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    assert (await sockets.ask(proxy, head + b"3\r\nabc\r\n0\r\n\r\n")).endswith(b"ok")
    assert origin.got.endswith(b"3\r\nabc\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("bad.example:{port}", b"allow-list"),
        ("good.example.bad.example:{port}", b"allow-list"),
        ("127.0.0.1:{port}", b"allow-list"),
        ("good.example:22", b"port 22"),
        ("trick.example:{port}", b"10.0.0.1"),
        ("mixed.example:{port}", b"169.254.169.254"),
    ],
)
async def test_what_is_not_allowed(tmp_path: Path, sockets: Sockets, target: str, reason: bytes) -> None:
    port = await sockets.serve(echo)
    proxy = Proxy(tmp_path, sockets, [port])
    listening = await proxy.start()
    target = target.format(port=port)
    for request in (
        f"CONNECT {target} HTTP/1.1\r\n\r\n",
        f"GET http://{target}/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
    ):
        answer = await sockets.ask(listening, request.encode())
        assert answer.startswith(b"HTTP/1.1 403")
        assert reason in answer
    assert {decision for decision, _ in proxy.decisions()} == {"deny"}
    assert len(proxy.decisions()) == 2
    assert not {"bad.example", "127.0.0.1"} & set(proxy.resolved)


async def test_a_real_name_of_loopback_is_denied(tmp_path: Path, sockets: Sockets) -> None:
    port = await sockets.serve(echo)
    log = DecisionLog(tmp_path / "log")
    proxy = await sockets.serve(EgressProxy(EgressPolicy(("localhost",), [port]), log).serve)
    answer = await sockets.ask(proxy, f"CONNECT localhost:{port} HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"not a public address" in answer


@pytest.mark.parametrize(
    "request_",
    ["GET / HTTP/1.1\r\n\r\n", "GET https://good.example/ HTTP/1.1\r\n\r\n", "GET ftp://good.example/ HTTP/1.1\r\n\r\n",
     "CONNECT good.example HTTP/1.1\r\n\r\n", "CONNECT good.example:x HTTP/1.1\r\n\r\n",
     "CONNECT good.example:443/x HTTP/1.1\r\n\r\n", "CONNECT u@good.example:443 HTTP/1.1\r\n\r\n",
     "GET http://u:p@good.example/ HTTP/1.1\r\n\r\n", "GET http://[::1/ HTTP/1.1\r\n\r\n", "nonsense\r\n\r\n",
     "CONNECT good.example:99999 HTTP/1.1\r\n\r\n"],
)  # fmt: skip
async def test_malformed_requests(tmp_path: Path, sockets: Sockets, request_: str) -> None:
    proxy = await Proxy(tmp_path, sockets, [80, 443]).start()
    assert (await sockets.ask(proxy, request_.encode())).startswith(b"HTTP/1.1 400")


async def test_what_cannot_be_connected(tmp_path: Path, sockets: Sockets, unused_tcp_port: int) -> None:
    proxy = Proxy(tmp_path, sockets, [unused_tcp_port])
    request = f"CONNECT good.example:{unused_tcp_port} HTTP/1.1\r\n\r\n"
    assert (await sockets.ask(await proxy.start(), request.encode())).startswith(b"HTTP/1.1 502")
    assert proxy.decisions() == [("fail", "good.example")]


async def test_connections_are_bounded_in_number_and_idle_time(tmp_path: Path, sockets: Sockets) -> None:
    port = await sockets.serve(echo)
    listening = await Proxy(tmp_path, sockets, [port], max_connections=1, idle=0.3).start()
    reader, _ = await connected(sockets, listening, f"good.example:{port}")
    assert (await sockets.ask(listening, b"")).startswith(b"HTTP/1.1 503")
    async with asyncio.timeout(5):
        assert await reader.read() in {b"", b"<end>"}
    await connected(sockets, listening, f"good.example:{port}")


async def test_a_chain_through_an_upstream_proxy(tmp_path: Path, sockets: Sockets) -> None:
    port = await sockets.serve(echo)
    upstream = await Proxy(tmp_path, sockets, [port]).start()
    log = DecisionLog(tmp_path / "second")
    policy = EgressPolicy(("good.example",), [port])
    chained = await sockets.serve(EgressProxy(policy, log, upstream=f"http://127.0.0.1:{upstream}").serve)
    reader, writer = await connected(sockets, chained, f"good.example:{port}")
    writer.write(b"through")
    assert await reader.readexactly(7) == b"through"
    refused = await sockets.ask(chained, f"CONNECT bad.example:{port} HTTP/1.1\r\n\r\n".encode())
    assert refused.startswith(b"HTTP/1.1 403")


async def test_credentials_for_the_upstream_proxy(tmp_path: Path, sockets: Sockets) -> None:
    origin = Origin()
    port = await sockets.serve(origin.serve)
    log = DecisionLog(tmp_path / "log")
    policy = EgressPolicy(("good.example",))
    proxy = EgressProxy(policy, log, upstream=f"http://user:p%40ss@127.0.0.1:{port}")
    await connected(sockets, await sockets.serve(proxy.serve), "good.example:443")
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNz\r\n" in origin.got
    assert "p%40ss" not in (tmp_path / "log").read_text()


def test_the_log_is_bounded(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log", limit=2000)
    for number in range(200):
        log.add(decision="deny", host=f"{number}.example")
    entries = read_log(tmp_path / "log")
    assert entries[-1]["host"] == "199.example"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4000
    reopened = DecisionLog(tmp_path / "log", limit=2000)
    reopened.add(decision="allow", host="later.example")
    assert read_log(tmp_path / "log")[-1]["host"] == "later.example"
