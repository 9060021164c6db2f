"""A URL shortener: a page with a form, short addresses that lead to long ones, kept in SQLite."""

import argparse
import html
import secrets
import sqlite3
import string
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

ALPHABET = string.ascii_letters + string.digits
LENGTH = 6
URL_LIMIT = 2_000

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>URL shortener</title>
<style>
  body {{ font: 1.1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem; color: #223; }}
  form {{ display: flex; gap: .5rem; }}
  input {{ flex: 1; font: inherit; padding: .5rem; border: 1px solid #99a; border-radius: .3rem; }}
  button {{ font: inherit; padding: .5rem 1rem; border: 0; border-radius: .3rem; background: #246; color: white; }}
  table {{ width: 100%; margin-top: 2rem; border-collapse: collapse; }}
  th, td {{ padding: .3rem; border-bottom: 1px solid #dde; text-align: left; word-break: break-all; }}
  .problem {{ color: #a22; }}
</style>
<h1>URL shortener</h1>
<form method="post" action="/">
  <label for="url" hidden>Long address</label>
  <input id="url" name="url" type="url" required placeholder="https://example.org/a/very/long/address">
  <button>Shorten</button>
</form>
{message}
<table>
  <thead><tr><th>Short</th><th>Leads to</th><th>Visits</th></tr></thead>
  <tbody>
{rows}
  </tbody>
</table>
</html>
"""


class Links:
    """Short codes and the addresses they lead to."""

    def __init__(self, path=":memory:"):
        self._db = sqlite3.connect(path, check_same_thread=False)
        self._lock = threading.Lock()
        with self._lock, self._db:
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS links (code TEXT PRIMARY KEY, url TEXT UNIQUE, visits INTEGER DEFAULT 0)"
            )

    def shorten(self, url):
        """The code for an address: the same address has one code. Raises ValueError for what is no web address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or len(url) > URL_LIMIT:
            raise ValueError("only http and https addresses can be shortened")
        with self._lock, self._db:
            code = "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))
            self._db.execute("INSERT OR IGNORE INTO links (code, url) VALUES (?, ?)", (code, url))
            return self._db.execute("SELECT code FROM links WHERE url = ?", (url,)).fetchone()[0]

    def follow(self, code):
        """The address behind a code, counted as a visit; None when there is none."""
        with self._lock, self._db:
            self._db.execute("UPDATE links SET visits = visits + 1 WHERE code = ?", (code,))
            found = self._db.execute("SELECT url FROM links WHERE code = ?", (code,)).fetchone()
            return found[0] if found else None

    def all(self):
        """(code, address, visits) of every link, the newest first."""
        with self._lock:
            return self._db.execute("SELECT code, url, visits FROM links ORDER BY rowid DESC LIMIT 100").fetchall()

    def close(self):
        """Close the database."""
        self._db.close()


def page(links, message=""):
    """The HTML page."""
    rows = "\n".join(
        f'    <tr><td><a href="/{code}">/{code}</a></td><td>{html.escape(url)}</td><td>{visits}</td></tr>'
        for code, url, visits in links.all()
    )
    return PAGE.format(message=message, rows=rows)


class Handler(BaseHTTPRequestHandler):
    links = None

    def do_GET(self):
        path = urlsplit(self.path).path
        if path == "/":
            self.send(200, page(self.links))
        elif url := self.links.follow(path[1:]):
            self.send(302, "", location=url)
        else:
            self.send(404, page(self.links, '<p class="problem">There is no such short address.</p>'))

    def do_POST(self):
        length = min(int(self.headers.get("Content-Length") or 0), 10 * URL_LIMIT)
        form = parse_qs(self.rfile.read(length).decode(errors="replace"))
        try:
            code = self.links.shorten(form.get("url", [""])[0].strip())
        except ValueError as problem:
            self.send(400, page(self.links, f'<p class="problem">{html.escape(str(problem))}</p>'))
        else:
            self.send(201, page(self.links, f'<p>Your short address is <a href="/{code}">/{code}</a></p>'))

    def send(self, status, body, location=""):
        data = body.encode()
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        pass


def make_server(links, host="127.0.0.1", port=8000):
    """A server that is not serving yet."""
    return ThreadingHTTPServer((host, port), type("BoundHandler", (Handler,), {"links": links}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--database", default=":memory:")
    options = parser.parse_args()
    with make_server(Links(options.database), options.host, options.port) as server:
        print(f"listening on http://{options.host}:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
