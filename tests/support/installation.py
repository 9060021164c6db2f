"""A whole installation for tests: home directory, model server, Dagster's real processes, local tracker and forge."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from atelier_dagster.artifacts import ArtifactStore, DirectoryStore
from atelier_dagster.cli.home import dagster_directory, prepare_home
from atelier_dagster.cli.stack import Stack, StackOptions
from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.lineage import History
from atelier_dagster.factory.ticket import RepoRef, TicketKey
from atelier_dagster.forges import LocalForge, LocalTracker
from atelier_dagster.orchestration.history import HistoryReader, active_runs
from atelier_dagster.workshops import LocalWorkshops

_POLL = 0.5
_AGENT = Path(__file__).with_name("agent_script.py")


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Installation:
    """What a test sees of a running installation."""

    home: Path
    stack: Stack
    instance: dg.DagsterInstance
    forge: LocalForge
    tracker: LocalTracker
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    def take_in(self, name: str, source: Path) -> RepoRef:
        """Take an existing repository in."""
        repo = RepoRef(tracker="local", owner="test", name=name)
        asyncio.run(self.forge.init(repo, source))
        return repo

    def repository(self, name: str, files: Mapping[str, str] | None = None, branch: str = "main") -> RepoRef:
        """Take a small repository in; without files it is empty."""
        repo = RepoRef(tracker="local", owner="test", name=name)
        source: Path | None = None
        with tempfile.TemporaryDirectory() as scratch:
            if files is not None:
                source = Path(scratch, name)
                make_repository(source, files, branch)
            asyncio.run(self.forge.init(repo, source, default_branch=branch))
        return repo

    def ticket(self, repo: RepoRef, title: str, body: str = "", labels: Sequence[str] = ("atelier",)) -> TicketKey:
        """Write a ticket, as a user would."""
        return asyncio.run(self.tracker.create_issue(repo, title=title, body=body, labels=labels)).key

    def history(self, key: TicketKey) -> History:
        """What is recorded about a ticket now."""
        return recorded(self.home, self.instance, key)

    def wait(self, what: str, condition: Callable[[], Any], limit: float = 300.0) -> Any:
        """Wait until `condition` gives something true. Fails with the stack's last words when it takes too long."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            self.stack.check()
            if found := condition():
                return found
            time.sleep(_POLL)
        raise AssertionError(f"{what} did not happen within {limit:.0f} s\n{self._runs()}")

    def wait_current(self, key: TicketKey, asset: str, limit: float = 300.0) -> Any:
        """Wait until an asset of a ticket is current; its value. Reads the history only when there is news."""
        filters = dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=[key.partition])
        seen = -1

        def found() -> Any:
            nonlocal seen
            records = self.instance.fetch_materializations(filters, limit=1).records
            if not records or records[0].storage_id == seen:
                return None
            seen = records[0].storage_id
            return self.history(key).current(asset)

        return self.wait(f"{asset} of {key}", found, limit).artifact.value

    def wait_idle(self, key: TicketKey, limit: float = 120.0) -> None:
        """Wait until no run of a ticket is queued or active."""
        self.wait(f"an end of the runs of {key}", lambda: not active_runs(self.instance, key.partition), limit)

    def decide(self, key: TicketKey, action: Action = Action.APPROVE, reason: str = "") -> str:
        """Decide about the pull request's present head, as the command line does; the sensor notices by itself."""
        number = self.history(key).current("pull_request").artifact.value.number  # type: ignore[union-attr]
        head = asyncio.run(self.forge.get_pull_request(key.repo, number)).head
        return asyncio.run(self.forge.record_decision(key.repo, number, action, head=head, reason=reason))

    def deliver(self, key: TicketKey, limit: float = 300.0) -> Any:
        """Wait for the pull request, and until its run has ended."""
        opened = self.wait_current(key, "pull_request", limit)
        self.wait_idle(key)
        return opened

    def finish(self, key: TicketKey, limit: float = 300.0) -> Any:
        """Approve, and wait for the outcome."""
        self.decide(key)
        return self.wait_current(key, "outcome", limit)

    def comments(self, key: TicketKey) -> list[str]:
        """Everything said on the ticket."""
        return [comment.body for comment in asyncio.run(self.tracker.comments(key))]

    def _runs(self) -> str:
        records = self.instance.get_run_records(limit=12)
        lines = [f"{r.dagster_run.job_name} {r.dagster_run.status.value} {r.dagster_run.tags}" for r in records]
        return "\n".join(lines)


def recorded(home: Path, instance: dg.DagsterInstance, key: TicketKey) -> History:
    """What is recorded about a ticket in a home."""
    store = ArtifactStore(DirectoryStore(home / "artifacts"))
    return asyncio.run(HistoryReader(instance, store, key.partition).read(with_runs=True))


def make_repository(path: Path, files: Mapping[str, str], branch: str) -> None:
    """A git repository with one commit."""
    path.mkdir(parents=True)
    for name, text in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.invalid"]
    for argv in (["init", "-q", "-b", branch], ["add", "-A"], [*identity, "commit", "-q", "-m", "Begin"]):
        subprocess.run(["git", "-C", str(path), *argv], check=True, timeout=60)


@contextmanager
def installation(model_url: str, environment: Mapping[str, str] | None = None) -> Generator[Installation]:
    """Start everything; on leaving, every process and directory is gone."""
    home = Path(tempfile.mkdtemp(prefix="atelier-test-"))
    wanted = {
        "ATELIER_HOME": str(home),
        "ATELIER_LLM_BASE_URL": model_url,
        "ATELIER_LLM_MODEL": "test-model",
        "ATELIER_LLM_TIMEOUT": "20",
        "ATELIER_AGENT": "command",
        "ATELIER_AGENT_COMMAND": json.dumps(["python3", "-c", _AGENT.read_text()]),
        **(environment or {}),
    }
    asyncio.run(prepare_home(home))
    try:
        with Stack(StackOptions(home=home, port=free_port(), environment=wanted)) as stack:
            stack.start()
            with dg.DagsterInstance.from_config(str(dagster_directory(home))) as instance:
                yield Installation(
                    home=home,
                    stack=stack,
                    instance=instance,
                    forge=LocalForge(home / "forge"),
                    tracker=LocalTracker(home / "forge"),
                    environment=wanted,
                )
    finally:
        asyncio.run(remove_workshops(home))
        shutil.rmtree(home, ignore_errors=True)


async def remove_workshops(home: Path) -> None:
    """End every supervisor of a home: they would survive the removal of their directories for a while."""
    backend = LocalWorkshops(home / "workshops")
    await asyncio.gather(*(backend.delete(status.name) for status in await backend.list()))
