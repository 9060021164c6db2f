"""Git over HTTP with basic authentication: git's own http-backend behind a socket."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


@dataclass
class GitServer:
    """A running server; `paths` are the requests it got, `redirect_to` makes it send everyone elsewhere."""

    url: str
    username: str = "bot"
    password: str = "s3cr3t-t0ken/with+signs"
    paths: list[str] = field(default_factory=list[str])
    authorizations: list[str] = field(default_factory=list[str])
    redirect_to: str = ""

    @property
    def expected(self) -> str:
        """The only good Authorization header."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


@contextmanager
def git_server(root: Path) -> Generator[GitServer]:
    """Serve the bare repositories below a directory, for reading and pushing."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    state = GitServer(f"http://127.0.0.1:{server.server_address[1]}")
    server.RequestHandlerClass = _handler(root, state)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _handler(root: Path, state: GitServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self._body())

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", "0")))
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _answer(self, body: bytes) -> None:
            state.paths.append(self.path)
            given = self.headers.get("Authorization", "")
            if given:
                state.authorizations.append(given)
            if state.redirect_to:
                self._send(302, [("Location", state.redirect_to + self.path)], b"")
            elif given != state.expected:
                self._send(401, [("WWW-Authenticate", 'Basic realm="git"')], b"")
            else:
                self._send(*_backend(root, self, body))

        def _send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: tests look at `paths`."""

    return Handler


def _backend(root: Path, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
    parts = urlsplit(request.path)
    env = {
        "PATH": os.environ["PATH"],
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "REMOTE_USER": "bot",
        "REQUEST_METHOD": request.command,
        "PATH_INFO": parts.path,
        "QUERY_STRING": parts.query,
        "CONTENT_TYPE": request.headers.get("Content-Type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
        "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
    }
    done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=env, check=True, timeout=60)
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    headers = [tuple(line.split(": ", 1)) for line in head.decode().split("\r\n")]
    status = next((int(value.split()[0]) for name, value in headers if name == "Status"), 200)
    return status, [(name, value) for name, value in headers if name != "Status"], content
