"""A model server for tests: the OpenAI wire protocol over a real socket, with answers that a test decides.

The protocol follows OpenAI's API reference for chat completions (JSON, and server-sent events when `stream` is true).
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_ROLE = re.compile(r"You are the ([a-zA-Z ]+?)(?: \(rework\))? of a software team\.")

Answer = str | tuple[int, dict[str, Any]]
"""An answer's text, or an HTTP status with an error body."""
Responder = Callable[[str, str], Answer]
"""(role, the user's prompt) -> answer."""


@dataclass
class ModelServer:
    """A running server and what it was asked."""

    url: str
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(role, user prompt) of every request, in order."""

    def count(self, role: str) -> int:
        """Requests made for a role."""
        return sum(1 for asked, _ in self.asked if asked == role)


def role_of(system: str) -> str:
    """The role that a system prompt speaks to."""
    match = _ROLE.search(system)
    return match[1] if match else ""


def approve(role: str, prompt: str) -> Answer:
    """Answers of a team that agrees at once on one task for everything."""
    answers: dict[str, Any] = {
        "analyst": {"job_story": "When I ask, I want it done.", "criteria": ["it works", "it is tested"]},
        "planner": {"tasks": [{"id": "all", "title": "Do it", "description": "Do it", "scope": ["**"]}]},
        "greenfield designer": {
            "entry_point": "app.py",
            "manifest": "pyproject.toml",
            "tree": ["app.py"],
            "technology": "Python",
            "test_command": "true",
        },
    }
    return json.dumps(answers.get(role, {"verdict": "approve", "comments": []}))


class _Server(ThreadingHTTPServer):
    """Says nothing about clients that were killed."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def model_server(responder: Responder = approve) -> Generator[ModelServer]:
    """Serve on a free port of the loopback interface."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            return

        def do_GET(self) -> None:
            self._send(200, {"object": "list", "data": [{"id": "test-model", "object": "model"}]})

        def do_POST(self) -> None:
            data = self.rfile.read(length := int(self.headers["Content-Length"]))
            if len(data) < length:  # the client was killed
                self.close_connection = True
                return
            body = json.loads(data)
            system = next((m["content"] for m in body["messages"] if m["role"] == "system"), "")
            prompt = next((m["content"] for m in body["messages"] if m["role"] == "user"), "")
            role = role_of(system)
            state.asked.append((role, prompt))
            answer = responder(role, prompt)
            if isinstance(answer, tuple):
                self._send(*answer)
            elif body.get("stream"):
                self._stream(answer)
            else:
                message = {"role": "assistant", "content": answer}
                self._send(200, {**_HEAD, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

        def _send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, answer: str) -> None:
            head = {**_HEAD, "object": "chat.completion.chunk"}
            delta: dict[str, Any] = {
                "index": 0,
                "delta": {"role": "assistant", "content": answer},
                "finish_reason": None,
            }
            end: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "stop"}
            chunks: list[dict[str, Any]] = [
                {**head, "choices": [delta]},
                {**head, "choices": [end]},
                {**head, "choices": [], "usage": _USAGE},
            ]
            data = "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data.encode())

    server = _Server(("127.0.0.1", 0), Handler)
    state = ModelServer(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join(timeout=5)
        server.server_close()


_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
_HEAD: dict[str, Any] = {
    "id": "chatcmpl-test",
    "object": "chat.completion",
    "created": 0,
    "model": "test-model",
    "usage": _USAGE,
}
