"""HTTP: one request in, one answer out. What a path means is in `bookshelf.routes`."""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from bookshelf.routes import find

BODY_LIMIT = 100_000


class Problem(Exception):
    """A request that is answered with an error."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def respond(store, method, target, body=b"", headers=None):
    """Answer one request: (status, value). A text is sent as it is, everything else as JSON."""
    headers = headers or {}
    url = urlsplit(target)
    handler = find(method, url.path)
    if handler is None:
        return 404, {"error": "not found"}
    try:
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        return handler(store, query, read_json(body) if body else {})
    except Problem as problem:
        return problem.status, {"error": str(problem)}


def read_json(body):
    """The request's JSON object."""
    try:
        value = json.loads(body)
    except ValueError:
        raise Problem(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise Problem(400, "the body is not a JSON object")
    return value


class Handler(BaseHTTPRequestHandler):
    store = None

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_LIMIT:
            status, value = 413, {"error": "too large"}
        else:
            status, value = respond(self.store, self.command, self.path, self.rfile.read(length), self.headers)
        text = isinstance(value, str)
        data = value.encode() if text else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8" if text else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, format, *args):
        if os.environ.get("BOOKSHELF_LOG"):
            super().log_message(format, *args)


def serve(store, host, port):
    """Serve until interrupted."""
    handler = type("BoundHandler", (Handler,), {"store": store})
    with ThreadingHTTPServer((host, port), handler) as server:
        print(f"listening on http://{host}:{server.server_port}", flush=True)
        server.serve_forever()
