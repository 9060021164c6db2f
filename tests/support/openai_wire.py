"""A real HTTP server that speaks the OpenAI wire from a script, faults included."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from atelier_dagster.gateway import OpenAIGateway

KEY = "sk-never-to-be-seen-0123456789"

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Request:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Wire:
    """Answers in order, the last one again and again. `release` ends silences."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list[Answer])
    requests: list[Request] = field(default_factory=list[Request])
    release: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def gateway(self, **options: Any) -> OpenAIGateway:
        """A gateway that hardly pauses."""
        settings: dict[str, Any] = {"backoff": 0.01, "timeout": 20.0, "idle_timeout": 5.0, **options}
        return OpenAIGateway(self.url, SecretStr(KEY), "model-a", **settings)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection."""
        try:
            self.requests.append(await _read(reader))
            self.arrived.set()
            if not self.answers:
                self.answers = [self.error("404 Not Found")]
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            await answer(writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def text(self, *parts: str, done: bool = True, headers: str = "", **chunk: Any) -> Answer:
        """A stream of these parts; without `done` it closes before the end."""

        async def answer(writer: asyncio.StreamWriter) -> None:
            writer.write(_head("200 OK", "text/event-stream", headers))
            for part in parts:
                writer.write(_event(_chunk(part)))
                await writer.drain()
            if done:
                writer.write(_event(_chunk(None, finish=chunk.get("finish", "stop"))))
                usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, **chunk.get("usage", {})}
                writer.write(_event({**_chunk(None), "choices": [], "usage": usage}))
                writer.write(b"data: [DONE]\n\n")

        return answer

    def events(self, *lines: str) -> Answer:
        """A stream of raw event lines."""

        async def answer(writer: asyncio.StreamWriter) -> None:
            writer.write(_head("200 OK", "text/event-stream"))
            for line in lines:
                writer.write(f"{line}\n\n".encode())

        return answer

    def plain(self, status: str, body: Any, *, headers: str = "", kind: str = "application/json") -> Answer:
        """A whole body."""

        async def answer(writer: asyncio.StreamWriter) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            writer.write(_head(status, kind, f"{headers}Content-Length: {len(data)}\r\n") + data)

        return answer

    def error(self, status: str, message: str = "no", kind: str = "", *, headers: str = "") -> Answer:
        """An error as OpenAI and LiteLLM write it."""
        body = {"error": {"message": message, "type": kind or None, "param": None, "code": status.split(maxsplit=1)[0]}}
        return self.plain(status, body, headers=headers)

    def silent(self, *parts: str) -> Answer:
        """These parts, then nothing until the test ends. Without parts not even a status."""

        async def answer(writer: asyncio.StreamWriter) -> None:
            if parts:
                await self.text(*parts, done=False)(writer)
                await writer.drain()
            await self.release.wait()

        return answer

    def broken(self) -> Answer:
        """A chunked body that breaks off inside a chunk."""

        async def answer(writer: asyncio.StreamWriter) -> None:
            data = _event(_chunk("half"))
            writer.write(_head("200 OK", "text/event-stream", "Transfer-Encoding: chunked\r\n"))
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n" + b"fff\r\ndata: {")

        return answer

    def hangup(self) -> Answer:
        """The connection closes without an answer."""

        async def answer(writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()

        return answer


def _head(status: str, kind: str, headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n{headers}\r\n".encode()


def _event(data: Any) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _chunk(content: str | None, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": content} if content is not None else {}, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "model-a-1",
        "choices": [choice],
    }


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, json.loads(body) if body else None)


@asynccontextmanager
async def openai_wire() -> AsyncGenerator[Wire]:
    """A server on a free port of this machine, ended with the block."""
    scripted = Wire()
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield scripted
    finally:
        scripted.release.set()
        server.close()
        await server.wait_closed()
