"""An OpenAI-compatible HTTP server around a function from conversation to reply. Protocol only: no script in here."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Protocol, cast

from atelier_dagster.demo.conversation import Conversation, Reply, read_conversation

LABEL = "atelier-script"
"""Model id, fingerprint and Server header of everything served here: nobody can take it for a real model."""

_BODY_LIMIT = 32 * 1024 * 1024
_DIMENSIONS = 64
_PIECE = 400
"""Characters of text or arguments a streamed chunk holds."""


class Framing(Protocol):
    """Turns the chunks of one streamed answer into the bytes on the wire."""

    def __call__(self, conversation: Conversation, chunks: Iterable[Mapping[str, Any]], /) -> Iterator[bytes]: ...


def plain_frames(_: Conversation, chunks: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Server-sent events as the OpenAI API sends them."""
    for chunk in chunks:
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


class ModelServer:
    """Serves `answer` on a local port from a thread of its own; a context manager.

    `observe` gets every request (path and parsed body) before it is answered.
    """

    def __init__(
        self,
        answer: Callable[[Conversation], Reply],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        framing: Framing = plain_frames,
        observe: Callable[[str, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.answer = answer
        self.framing = framing
        self.observe = observe
        self._http = _Server((host, port), _Handler)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True, name=LABEL)

    @property
    def port(self) -> int:
        """The port listened on."""
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """Base URL for OpenAI clients."""
        return f"http://{self._http.server_address[0]}:{self.port}/v1"

    def start(self) -> ModelServer:
        """Begin to serve."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop and free the port."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join(10)
        self._http.server_close()

    def __enter__(self) -> ModelServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    owner: ModelServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news; anything else is a fault of the script, and is shown."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = LABEL
    sys_version = ""
    timeout = 120
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: callers observe requests through the server."""

    def do_GET(self) -> None:
        if self.path.rstrip("/").endswith("/models"):
            model = {"id": LABEL, "object": "model", "created": 0, "owned_by": "a script, not a model"}
            self._send(200, {"object": "list", "data": [model]})
        else:
            self._refuse(404, f"no such path: {self.path}")

    def do_POST(self) -> None:
        request = self._read_body()
        if request is None:
            return
        if self.server.owner.observe is not None:
            self.server.owner.observe(self.path, request)
        if self.path.endswith("/chat/completions"):
            self._chat(request)
        elif self.path.endswith("/embeddings"):
            self._send(200, _embeddings(request))
        else:
            self._refuse(404, f"no such path: {self.path}")

    def _read_body(self) -> Mapping[str, Any] | None:
        declared = self.headers.get("Content-Length", "0")
        length = int(declared) if declared.isdecimal() else _BODY_LIMIT + 1
        if length > _BODY_LIMIT:
            self.close_connection = True
            self._refuse(413, "request too large")
            return None
        try:
            request = json.loads(self.rfile.read(length))
        except ValueError:
            request = None
        if not isinstance(request, dict):
            self._refuse(400, "the body is not a JSON object")
            return None
        return cast("dict[str, Any]", request)

    def _chat(self, request: Mapping[str, Any]) -> None:
        conversation = read_conversation(request)
        if not conversation.prompt and not conversation.system:
            self._refuse(400, "messages: at least one is needed")
            return
        reply = self.server.owner.answer(conversation)
        if not request.get("stream"):
            self._send(200, _completion(request, reply))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("X-Atelier-Script", LABEL)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for frame in self.server.owner.framing(conversation, _chunks(request, reply)):
            self.wfile.write(frame)
            self.wfile.flush()

    def _refuse(self, status: int, message: str) -> None:
        self._send(status, {"error": {"message": message, "type": "invalid_request_error", "code": None}})

    def _send(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Atelier-Script", LABEL)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _identity(request: Mapping[str, Any], kind: str) -> dict[str, Any]:
    digest = hashlib.sha256(json.dumps(request.get("messages"), sort_keys=True).encode()).hexdigest()
    return {"id": f"chatcmpl-{digest[:24]}", "object": kind, "created": 0, "model": LABEL, "system_fingerprint": LABEL}


def _tool_calls(request: Mapping[str, Any], reply: Reply) -> list[dict[str, Any]]:
    turn = len(cast("list[object]", request.get("messages") or []))
    return [
        {
            "index": index,
            "id": f"call_{turn}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(reply.calls)
    ]


def _usage(request: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """About four characters a token, as usual for English."""
    asked = len(json.dumps(request.get("messages"))) // 4 + 1
    answered = (len(reply.text) + sum(len(call.arguments) + len(call.name) for call in reply.calls)) // 4 + 1
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


def _completion(request: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [{k: v for k, v in c.items() if k != "index"} for c in _tool_calls(request, reply)]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.calls else "stop"}
    return _identity(request, "chat.completion") | {"choices": [choice], "usage": _usage(request, reply)}


def _chunks(request: Mapping[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    identity = _identity(request, "chat.completion.chunk")

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        return identity | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for start in range(0, len(reply.text), _PIECE):
        yield chunk({"content": reply.text[start : start + _PIECE]})
    for call in _tool_calls(request, reply):
        arguments = call["function"]["arguments"]
        yield chunk({"tool_calls": [call | {"function": call["function"] | {"arguments": ""}}]})
        for start in range(0, len(arguments), _PIECE):
            piece = {"index": call["index"], "function": {"arguments": arguments[start : start + _PIECE]}}
            yield chunk({"tool_calls": [piece]})
    yield chunk({}, "tool_calls" if reply.calls else "stop")
    options = request.get("stream_options")
    if isinstance(options, dict) and cast("dict[str, Any]", options).get("include_usage"):
        yield identity | {"choices": [], "usage": _usage(request, reply)}


def _embeddings(request: Mapping[str, Any]) -> dict[str, Any]:
    given = request.get("input")
    texts = [str(text) for text in cast("list[object]", given)] if isinstance(given, list) else [str(given or "")]
    data = [{"object": "embedding", "index": i, "embedding": _embed(text)} for i, text in enumerate(texts)]
    tokens = sum(len(text) for text in texts) // 4 + 1
    return {
        "object": "list",
        "model": LABEL,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _embed(text: str) -> list[float]:
    """Words hashed into a unit vector: texts that share words are near each other."""
    vector = [0.0] * _DIMENSIONS
    for word in re.findall(r"\w+", text.lower()):
        vector[int.from_bytes(hashlib.sha256(word.encode()).digest()[:2]) % _DIMENSIONS] += 1.0
    length = math.sqrt(sum(x * x for x in vector)) or 1.0
    return [x / length for x in vector]
