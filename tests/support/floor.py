"""Whole tickets without a daemon: every run is a process that can be killed, and routing on the real history says what
follows, as the progress sensor would. The sandbox, git, the tracker, the forge and the model's socket are real.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from atelier_dagster.artifacts import ArtifactStore, DirectoryStore
from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.change import PullRequest
from atelier_dagster.factory.lineage import JOBS, History
from atelier_dagster.factory.routing import DoneStep, Policy, RunStep, Step, WaitStep, next_step
from atelier_dagster.factory.ticket import RepoRef, TicketKey
from atelier_dagster.forges import LocalForge, LocalTracker
from atelier_dagster.orchestration import launch, partitions
from atelier_dagster.orchestration.history import HistoryReader
from atelier_dagster.orchestration.news import tell_failure
from atelier_dagster.ports import Comment
from atelier_dagster.workshops import LocalWorkshops
from tests.support.effects import Crash, Point
from tests.support.installation import make_repository

RUN_LIMIT = 600.0
"""Seconds that one run may take."""
START_LIMIT = 90.0

AGENT = r"""
prompt=$(cat)
echo started
echo run >> "$HOME/executions"
case "$prompt" in
"You are the QA engineer"*)
  mkdir -p .qa-evidence
  echo "GET / -> 200" > .qa-evidence/exchange.txt
  echo '{"verdict": "pass", "comments": [], "evidence_files": [".qa-evidence/exchange.txt"]}'
  ;;
*)
  number=$(($(ls change-*.txt 2>/dev/null | wc -l) + 1))
  echo "change $number" > "change-$number.txt"
  mkdir -p src deploy
  echo "TOKEN = None" > src/auth.py
  echo "FROM scratch" > deploy/Dockerfile
  echo "Done."
  ;;
esac
"""
"""An agent that says how often it was run in a file outside the checkout, and touches what every reviewer looks at."""

FILES = {"README.md": "# Shop\n", ".devcontainer/test.sh": "echo all good\n"}

_SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Hundreds of runs sync thousands of small files: in memory that takes no time."""
DAGSTER: Mapping[str, Any] = {
    "telemetry": {"enabled": False},
    "nux": {"enabled": False},
    # what a run prints goes to its log anyway; the local manager starts two more processes a run
    "compute_logs": {
        "module": "dagster._core.storage.noop_compute_log_manager",
        "class": "NoOpComputeLogManager",
    },
}


@dataclass(frozen=True)
class RunEnd:
    """How a run's process ended. `crash` is the armed crash that killed it."""

    run_id: str
    exit_code: int | None
    """None: killed by a signal."""
    crash: Crash | None
    log: str

    @property
    def ok(self) -> bool:
        """Whether the run succeeded."""
        return self.exit_code == 0


@dataclass
class Floor:
    """One installation on a directory of its own."""

    home: Path
    address: Path
    instance: dg.DagsterInstance
    forge: LocalForge
    tracker: LocalTracker
    policy: Policy = field(default_factory=Policy)

    # ---------------------------------------------------------------------------------------------------- people

    def ticket(self, name: str, title: str = "Add a feature", body: str = "Please add it.") -> TicketKey:
        """A repository with one labelled ticket, known to Dagster."""
        repo = RepoRef(tracker="local", owner="test", name=name)
        with tempfile.TemporaryDirectory() as scratch:
            make_repository(Path(scratch, name), FILES, "main")
            asyncio.run(self.forge.init(repo, Path(scratch, name)))
        key = asyncio.run(self.tracker.create_issue(repo, title=title, body=body, labels=("atelier",))).key
        partitions.add_tickets(self.instance, [key.partition])
        return key

    def decide(self, key: TicketKey, action: Action = Action.APPROVE, reason: str = "") -> str:
        """Decide about the pull request's present head; `source:id` of the decision."""
        number = self.opened(key).number
        head = asyncio.run(self.forge.get_pull_request(key.repo, number)).head
        decision = asyncio.run(self.forge.record_decision(key.repo, number, action, head=head, reason=reason))
        return f"cli:{decision}"

    # --------------------------------------------------------------------------------------------------- looking

    @property
    def store(self) -> ArtifactStore:
        """What runs have stored."""
        return ArtifactStore(DirectoryStore(self.home / "artifacts"))

    @property
    def workshops(self) -> LocalWorkshops:
        """The workshops that there are."""
        return LocalWorkshops(self.home / "workshops")

    def history(self, key: TicketKey) -> History:
        """What is recorded about a ticket now."""
        return asyncio.run(HistoryReader(self.instance, self.store, key.partition).read(with_runs=True))

    def next(self, key: TicketKey) -> Step:
        """What routing says now."""
        return next_step(self.history(key), self.policy)

    def opened(self, key: TicketKey) -> PullRequest:
        """The pull request that waits."""
        opened = self.history(key).value("pull_request", PullRequest)
        assert opened is not None
        return opened

    def comments(self, key: TicketKey) -> Sequence[Comment]:
        """Everything said on the ticket."""
        return asyncio.run(self.tracker.comments(key))

    def executions(self, key: TicketKey) -> Mapping[str, int]:
        """Workshop -> how often an agent was started in it, workshops that are gone included."""
        alive = {
            path.parents[2].name: path
            for path in (self.home / "workshops").glob(f"*-{key.slug}-*/data/home/executions")
        }
        gone = {path.name: path for path in (self.home / "executions").glob(f"*-{key.slug}-*")}
        return {name: len(path.read_text().splitlines()) for name, path in {**gone, **alive}.items()}

    # --------------------------------------------------------------------------------------------------- running

    def run(self, request: dg.RunRequest, armed: Sequence[Crash] = ()) -> RunEnd:
        """Execute a run in a process of its own. One that was killed is failed, as run monitoring would."""
        run_id = str(uuid.uuid4())
        directory = self.home / "runs" / run_id
        directory.mkdir(parents=True)
        order = {
            "dagster_home": str(self.home / "dagster"),
            "run_id": run_id,
            "job": request.job_name,
            "partition": request.partition_key,
            "assets": [asset.path[-1] for asset in request.asset_selection or ()],
            "run_config": request.run_config,
            "tags": request.tags,
            "armed": [asdict(crash) for crash in armed],
            "executions": str(self.home / "executions"),
            "workshops": str(self.home / "workshops"),
            "modules": str(self.address.with_name("modules")),
            "log": str(directory / "log"),
            "journal": str(directory / "journal"),
            "fired": str(directory / "fired"),
        }
        status = self._ask(order)
        killed = os.WIFSIGNALED(status)
        run = self.instance.get_run_by_id(run_id)
        if killed and run is not None and not run.is_finished:
            self.instance.report_run_failed(run, f"the process was killed by signal {os.WTERMSIG(status)}")
            asyncio.run(tell_failure(self.instance, self.tracker, run, logging.getLogger(__name__)))
        return RunEnd(
            run_id=run_id,
            exit_code=None if killed else os.WEXITSTATUS(status),
            crash=_fired(directory / "fired"),
            log=(directory / "log").read_text(errors="replace") if (directory / "log").exists() else "",
        )

    def materialize(self, key: TicketKey, *assets: str) -> RunEnd:
        """What the UI's Materialize does: an unnamed job, these assets, no configuration, no tags."""
        selection = [dg.AssetKey(asset) for asset in assets]
        request = dg.RunRequest(job_name="__ASSET_JOB", partition_key=key.partition, asset_selection=selection)
        return self.run(request)

    def start(self, key: TicketKey, armed: Sequence[Crash] = ()) -> RunEnd:
        """The run that intake asks for."""
        return self.run(launch.deliver_request(key.partition, 1, "the ticket has the label"), armed)

    def release(self, key: TicketKey, decision: str, armed: Sequence[Crash] = ()) -> RunEnd:
        """The run that the approval sensor asks for."""
        entry = self.history(key).current("pull_request")
        assert entry is not None
        return self.run(launch.release_request(key.partition, decision, entry.sha256), armed)

    def follow(
        self, key: TicketKey, armed: Sequence[Crash] = (), policy: Policy | None = None
    ) -> tuple[Step, RunEnd | None]:
        """What routing says, and the run that it asked for, if it did; back-off is not waited for."""
        history = self.history(key)
        step = next_step(history, policy or self.policy)
        if not isinstance(step, RunStep):
            return step, None
        request = launch.follow_request(self.instance, step, key.partition, history.runs[-1].run_id)
        assert request is not None, step
        return step, self.run(request, armed)

    def settle(self, key: TicketKey, limit: int = 12) -> WaitStep | DoneStep:
        """Follow until a human is waited for or the cycle has ended. Every run must succeed."""
        for _ in range(limit):
            step, end = self.follow(key)
            if end is None:
                assert not isinstance(step, RunStep)
                return step
            assert end.ok, f"{step.reason}\n{end.log[-4000:]}"
        raise AssertionError(f"{key} does not come to rest: {self.next(key)}")

    def points(self, key: TicketKey) -> Mapping[Point, int]:
        """Every effect of a ticket's runs in order, with the moments inside it at which a process can die."""
        found: dict[Point, int] = {}
        for run in sorted(self.history(key).runs, key=lambda run: run.seq):
            for line in (self.home / "runs" / run.run_id / "journal").read_text().splitlines():
                fields = json.loads(line)
                found[Point(**{k: v for k, v in fields.items() if k != "ticks"})] = fields["ticks"]
        return found

    def _ask(self, order: Mapping[str, Any]) -> int:
        with socket.socket(socket.AF_UNIX) as conn:
            conn.settimeout(RUN_LIMIT)
            conn.connect(str(self.address))
            conn.sendall(json.dumps(order).encode() + b"\n")
            with conn.makefile("r") as reader:
                return int(reader.readline())


def _fired(path: Path) -> Crash | None:
    if not path.exists():
        return None
    fields = json.loads(path.read_text().splitlines()[0])
    return Crash(Point(**fields["point"]), fields["when"], fields["tick"])


def all_of(job: str, key: TicketKey) -> dg.RunRequest:
    """A whole job from the UI."""
    assets = [dg.AssetKey(asset) for asset in JOBS[job]]
    return dg.RunRequest(job_name=job, partition_key=key.partition, asset_selection=assets)


@contextmanager
def floor(model_url: str, environment: Mapping[str, str] | None = None) -> Generator[Floor]:
    """Start the process that runs are forked from; on leaving, every process and directory is gone."""
    home = Path(tempfile.mkdtemp(prefix="atelier-floor-", dir=_SCRATCH))
    wanted = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[2])]),
        "ATELIER_HOME": str(home),
        "ATELIER_LLM_BASE_URL": model_url,
        "ATELIER_LLM_MODEL": "test-model",
        "ATELIER_AGENT": "command",
        "ATELIER_AGENT_COMMAND": json.dumps(["sh", "-c", AGENT, "agent"]),
        "ATELIER_KNOWLEDGE": "false",
        **(environment or {}),
    }
    (home / "dagster").mkdir()
    (home / "dagster" / "dagster.yaml").write_text(yaml.safe_dump(dict(DAGSTER)))
    try:
        with dg.DagsterInstance.from_config(str(home / "dagster")) as instance, _worker(home, wanted) as address:
            forge, tracker = LocalForge(home / "forge"), LocalTracker(home / "forge")
            yield Floor(home, address, instance, forge, tracker)
    finally:
        asyncio.run(_remove_workshops(home))
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _worker(home: Path, environment: Mapping[str, str]) -> Generator[Path]:
    address = home / "worker.sock"
    argv = [sys.executable, "-m", "tests.support.floor_worker", str(address)]
    cwd = str(Path(__file__).resolve().parents[2])
    with (home / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=cwd, env=dict(environment)
        )
    assert process.stdin and process.stdout
    try:
        ready = process.stdout.readline()
        assert ready == b"ready\n", (home / "worker.log").read_text()[-4000:]
        yield address
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait(20)


async def _remove_workshops(home: Path) -> None:
    workshops = LocalWorkshops(home / "workshops")
    if (home / "workshops").exists():
        for status in await workshops.list():
            await workshops.delete(status.name)
