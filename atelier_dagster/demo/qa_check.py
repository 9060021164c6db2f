"""Starts an application, makes HTTP exchanges, keeps what was said. The scripted QA engineer pipes this file into a
Python inside the workshop, so it is one file, on the standard library, that takes a JSON plan as its argument."""

# ruff: noqa: T201 - what it prints is what it is for

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

EVIDENCE = Path(".qa-evidence")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
START_LIMIT = 30.0
"""Seconds the application has to begin to listen."""


def main(plan: dict[str, Any]) -> int:
    """Run the plan; every line printed is a fact that the verdict is made from."""
    EVIDENCE.mkdir(exist_ok=True)
    port = free_port()
    argv = with_port(shlex.split(plan["command"]), port)
    print(f"START {shlex.join(argv)}")
    with tempfile.TemporaryFile() as output:
        application = subprocess.Popen(
            argv,
            env={**os.environ, **plan["environment"]},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if wait_for(application, port):
                examine(plan, port)
            else:
                output.seek(0)
                print(f"CHECK fail the application starts: {output.read()[-500:].decode(errors='replace')!r}")
        finally:
            stop(application)
    return 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def with_port(argv: list[str], port: int) -> list[str]:
    """The documented command on a port that is free here."""
    return [
        str(port) if re.fullmatch(r"\d{2,5}", word) else re.sub(r"(?<==)\d{2,5}$", str(port), word) for word in argv
    ]


def wait_for(application: subprocess.Popen[bytes], port: int) -> bool:
    until = time.monotonic() + START_LIMIT
    while time.monotonic() < until and application.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return True
        except OSError:
            time.sleep(0.05)
    return False


def stop(application: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(application.pid, signal.SIGTERM)
        application.wait(5)
    except ProcessLookupError:
        pass
    except subprocess.TimeoutExpired:
        os.killpg(application.pid, signal.SIGKILL)
        application.wait(5)


def examine(plan: dict[str, Any], port: int) -> None:
    captured: list[str] = []
    record: list[str] = []
    html = False
    for check in plan["checks"]:
        problem, is_html = exchange(check, port, captured, record)
        html = html or is_html
        print(f"CHECK {'fail' if problem else 'pass'} {check['name']}{': ' + problem if problem else ''}")
    (EVIDENCE / "exchanges.txt").write_text("\n".join(record), encoding="utf-8")
    print("EVIDENCE .qa-evidence/exchanges.txt")
    if html:
        screenshot(port)


def exchange(check: dict[str, Any], port: int, captured: list[str], record: list[str]) -> tuple[str, bool]:
    """One request and its answer: what is wrong with it ("" if nothing), and whether it was a page."""
    headers = dict(check.get("headers", {}))
    body = None
    if "json" in check:
        body, headers["Content-Type"] = json.dumps(check["json"]), "application/json"
    elif "form" in check:
        body, headers["Content-Type"] = urlencode(check["form"]), "application/x-www-form-urlencoded"
    path = check["path"].format(*captured, "", "", "")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(check["method"], path, body, headers)
        answer = connection.getresponse()
        text = answer.read(200_000).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        record.append(f"> {check['method']} {path}\n< no answer: {error}\n")
        return f"no answer ({error})", False
    finally:
        connection.close()
    location, kind = answer.getheader("Location") or "", answer.getheader("Content-Type") or ""
    head = f"< {answer.status}{' Location: ' + location if location else ''}\n< Content-Type: {kind}"
    record.append(f"> {check['method']} {path}\n> {body or ''}\n{head}\n{text[:4000]}\n")
    if "capture" in check and (found := re.search(check["capture"], text)):
        captured.append(found.group(1))
    return judge(check, answer.status, text, location), "text/html" in kind and answer.status == 200


def judge(check: dict[str, Any], status: int, text: str, location: str) -> str:
    if status != check.get("status", status):
        return f"status {status}, expected {check['status']}"
    if status >= 500:
        return f"status {status}"
    if "body" in check and not re.search(check["body"], text, re.DOTALL):
        return f"the answer has no {check['body']!r}"
    if "absent" in check and check["absent"] in text:
        return f"the answer still has {check['absent']!r}"
    if "location" in check and location != check["location"]:
        return f"leads to {location!r}"
    return ""


def screenshot(port: int) -> None:
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        print("NOTE no browser is installed here, so the page was checked by HTTP only")
        return
    target = (EVIDENCE / "page.png").absolute()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
    flags += ["--disable-background-networking", "--disable-dev-shm-usage", "--window-size=1000,700"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        argv = [browser, *flags, f"--user-data-dir={profile}", f"--screenshot={target}", f"http://127.0.0.1:{port}/"]
        ended = run_browser(argv)
    if target.is_file() and target.read_bytes().startswith(b"\x89PNG"):
        print("EVIDENCE .qa-evidence/page.png")
    else:
        print(f"NOTE the browser made no picture ({ended}), so the page was checked by HTTP only")


def run_browser(argv: list[str]) -> str:
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return f"exit code {process.wait(60)}"
    except subprocess.TimeoutExpired:
        return "no end after 60 s"
    finally:
        stop(process)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
