"""The two ways out of a local workshop, from the inside: the model, and the hosts that are allowed."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pydantic import SecretStr

from atelier_dagster.ports import ModelUpstream, RepoSource
from atelier_dagster.workshops import LocalWorkshops
from tests.support.workshops import ready, run, spec_for

pytestmark = pytest.mark.service


class Mirror(BaseHTTPRequestHandler):
    """Answers with what it was asked."""

    def do_GET(self) -> None:
        """Say path, key and body."""
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        answer = json.dumps({"path": self.path, "key": self.headers.get("authorization"), "body": body}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET  # noqa: N815 - the name that the server looks for

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture(scope="module")
def mirror() -> Generator[int]:
    """Port of a running `Mirror`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def upstream(port: int, key: str) -> ModelUpstream:
    return ModelUpstream(f"http://127.0.0.1:{port}/base/v1", SecretStr(key), "m")


async def asked(workshops: LocalWorkshops, name: str, url: str) -> dict[str, str]:
    done = await run(workshops, name, "curl", "-sS", "-d", "question", "-H", "Authorization: Bearer mine", url)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


async def test_the_model_is_reached_with_a_key_that_can_be_changed_later(
    tmp_path: Path, source: RepoSource, mirror: int
) -> None:
    workshops = LocalWorkshops(tmp_path, upstream=upstream(mirror, "first"))
    name = await ready(workshops, spec_for(source, model_access=True))
    try:
        status = await workshops.status(name)
        assert status is not None
        answer = await asked(workshops, name, f"{status.model_url}/chat/completions")
        assert answer == {"path": "/base/v1/chat/completions", "key": "Bearer first", "body": "question"}
        later = LocalWorkshops(tmp_path, upstream=upstream(mirror, "second"))
        await later.wait_running(name)
        assert (await asked(workshops, name, f"{status.model_url}/embeddings"))["key"] == "Bearer second"
        await LocalWorkshops(tmp_path).wait_running(name)
        assert (await asked(workshops, name, f"{status.model_url}/embeddings"))["key"] == "Bearer second"
    finally:
        await workshops.delete(name)


async def test_without_model_access_there_is_no_model(tmp_path: Path, source: RepoSource, mirror: int) -> None:
    workshops = LocalWorkshops(tmp_path, upstream=upstream(mirror, "key"))
    name = await ready(workshops, spec_for(source))
    status = await workshops.status(name)
    done = await run(workshops, name, "curl", "-sS", "http://127.0.0.1:3129/v1/models")
    await workshops.delete(name)
    assert status is not None
    assert status.model_url == ""
    assert done.exit_code == 7


async def test_allowed_hosts_are_reached_by_the_usual_tools_and_others_are_not(
    tmp_path: Path, source: RepoSource, mirror: int
) -> None:
    workshops = LocalWorkshops(
        tmp_path, default_egress=("localhost.localdomain",), egress_ports=(mirror,), egress_networks=("127.0.0.0/8",)
    )
    name = await ready(workshops, spec_for(source, egress=("127.0.0.1",)))
    try:
        # The proxy variables exempt 127.0.0.1, which is the workshop's own: the host's is asked for through the proxy.
        through = ("--noproxy", "", f"http://127.0.0.1:{mirror}/x")
        assert json.loads((await run(workshops, name, "curl", "-sS", *through)).stdout)["path"] == "/x"
        tunnelled = await run(workshops, name, "curl", "-sS", "-p", *through)
        assert json.loads(tunnelled.stdout)["path"] == "/x"
        refused = await run(workshops, name, "curl", "-sS", "-w", "%{http_code}", f"http://other.example:{mirror}/")
        assert refused.stdout.endswith(b"403")
        assert [(entry["decision"], entry["host"]) for entry in workshops.egress_log(name)] == [
            ("allow", "127.0.0.1"),
            ("allow", "127.0.0.1"),
            ("deny", "other.example"),
        ]
    finally:
        await workshops.delete(name)
