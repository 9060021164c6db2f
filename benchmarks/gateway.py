"""What the gateway adds to a model call, against bare httpx on the same local server."""

from __future__ import annotations

import asyncio
import importlib
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
from pydantic import SecretStr

sys.path.insert(0, str(Path(__file__).parents[1]))

from atelier_dagster.gateway import OpenAIGateway
from atelier_dagster.ports import ChatMessage

CALLS = 200
CHUNKS = 50
PROMPT = "word " * 500


def _chunk(content: str | None, finish: str | None = None) -> bytes:
    delta = {"content": content} if content else {}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


STREAM = b"".join([*[_chunk("word ")] * CHUNKS, _chunk(None, "stop"), b"data: [DONE]\n\n"])
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
    await reader.readexactly(length)
    writer.write(HEAD + STREAM)
    await writer.drain()
    writer.close()


async def _bare(client: httpx.AsyncClient, url: str) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "stream": True}
    parts: list[str] = []
    async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                parts.append(json.loads(line[6:])["choices"][0]["delta"].get("content", ""))
    return "".join(parts)


async def _median(call: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds; the first calls, which import and warm up, are left out."""
    for _ in range(5):
        await call()
    times: list[float] = []
    for _ in range(CALLS):
        started = time.perf_counter()
        await call()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


async def main() -> None:
    """Print medians and their ratio."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    started = time.perf_counter()
    await asyncio.to_thread(importlib.import_module, "openai.resources.chat.completions")
    print(f"import of the client, once a process: {time.perf_counter() - started:.2f} s")
    gateway = OpenAIGateway(url, SecretStr("key"), "m")
    async with server, httpx.AsyncClient() as client:
        bare = await _median(lambda: _bare(client, url))
        ours = await _median(lambda: gateway.chat("code", [ChatMessage("user", PROMPT)]))
    print(f"{CALLS} calls, {CHUNKS} chunks each, medians")
    print(f"bare httpx  {bare:7.2f} ms")
    print(f"gateway     {ours:7.2f} ms")
    print(f"ratio       {ours / bare:7.2f}")


if __name__ == "__main__":
    asyncio.run(main())
