"""Runs on a real instance, started by the warm launcher: what they share, how they end, and what they survive."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, GraphDefinition, op
from dagster._core.definitions.reconstruct import ReconstructableRepository

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.orchestration._warm import client, internals, records, wire, worker
from atelier_dagster.orchestration.launcher import WarmRunLauncher

LIMIT = 120.0

SHOP = """
import json, os, sys
from pathlib import Path
from dagster import Definitions, in_process_executor, job, op

VERSION = "one"

@op
def tell(context):
    facts = {
        "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "cwd": os.getcwd(), "version": VERSION,
        "environment": dict(os.environ), "output": os.fstat(1).st_ino,
    }
    told = Path(context.run.tags["told"])
    told.with_suffix(".part").write_text(json.dumps(facts))
    told.with_suffix(".part").rename(told)
    gate = context.run.tags.get("gate")
    if gate:
        Path(gate).read_text()

@job(executor_def=in_process_executor)
def errand():
    tell()

defs = Definitions(jobs=[errand])
"""


@op
def tell() -> None:
    """Stands for the shop's op: runs are made from it without importing the shop here."""


errand = GraphDefinition("errand", node_defs=[tell]).to_job()  # pyright: ignore[reportUnknownMemberType]


def until(condition: Callable[[], bool], limit: float = LIMIT) -> None:
    """Ask again and again; fail when the limit (seconds) is over."""
    pause = threading.Event()
    ends = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < ends, f"{inspect.getsource(condition).strip()} was not so within {limit:g} s"
        pause.wait(0.02)


@dataclass(frozen=True)
class Errand:
    """A launched run, and what its op told about the process it ran in."""

    shop: Shop
    run_id: str
    told: Path
    gate: Path

    @property
    def facts(self) -> dict[str, Any]:
        until(lambda: self.told.exists() or self.run.is_finished)
        assert self.told.exists(), self.messages
        return json.loads(self.told.read_text())

    @property
    def run(self) -> DagsterRun:
        run = self.shop.instance.get_run_by_id(self.run_id)
        assert run is not None
        return run

    @property
    def messages(self) -> str:
        return "\n".join(str(record) for record in self.shop.instance.all_logs(self.run_id))

    def open_gate(self) -> None:
        self.gate.write_text("go")

    def end(self, limit: float = LIMIT) -> DagsterRunStatus:
        until(lambda: self.run.is_finished, limit)
        return self.run.status


@dataclass(frozen=True)
class Shop:
    """Definitions in a directory, and an instance that launches their runs."""

    instance: DagsterInstance
    code: Path

    @property
    def module(self) -> Path:
        return self.code / f"{self.code.name}.py"

    @property
    def directory(self) -> Path:
        return Path(self.instance.storage_directory()) / "launcher"

    @property
    def launcher(self) -> WarmRunLauncher:
        launcher = self.instance.run_launcher
        assert isinstance(launcher, WarmRunLauncher)
        return launcher

    def create(self, *, gated: bool = False, executable: str = sys.executable) -> Errand:
        number = len(list(self.code.glob("*.gate")))
        told, gate = self.code / f"{number}.json", self.code / f"{number}.gate"
        os.mkfifo(gate)
        repository = ReconstructableRepository.for_module(self.code.name, "defs", str(self.code))
        origin = repository._replace(executable_path=executable).get_reconstructable_job("errand").get_python_origin()
        tags = {"told": str(told), **({"gate": str(gate)} if gated else {})}
        run = self.instance.create_run_for_job(errand, tags=tags, job_code_origin=origin)
        return Errand(self, run.run_id, told, gate)

    def launch(self, *, gated: bool = False, executable: str = sys.executable) -> Errand:
        order = self.create(gated=gated, executable=executable)
        self.instance.launch_run(order.run_id, cast("Any", None))
        return order


def make_home(path: Path, config: str = "") -> DagsterInstance:
    path.mkdir(parents=True)
    settings = f"""
        telemetry: {{enabled: false}}
        run_launcher:
          module: atelier_dagster.orchestration.launcher
          class: WarmRunLauncher
          config: {{{config}}}
        """
    (path / "dagster.yaml").write_text(textwrap.dedent(settings))
    return DagsterInstance.from_config(str(path))


def end_zygotes(instance: DagsterInstance) -> None:
    """A zygote ends when its directory is gone."""
    directory = Path(instance.storage_directory()) / "launcher"
    if directory.exists():
        directory.rename(directory.with_name("gone"))
    instance.dispose()


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Generator[DagsterInstance]:
    # Longer than a socket's address may be.
    instance = make_home(tmp_path_factory.mktemp("home") / ("long" * 20) / "home", "preload: [jinja2, yaml]")
    yield instance
    end_zygotes(instance)


@pytest.fixture(scope="module")
def shared_shop(instance: DagsterInstance, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return make_shop(instance, tmp_path_factory.mktemp("shared_shop"))


@pytest.fixture
def shop(instance: DagsterInstance, tmp_path: Path) -> Shop:
    code = tmp_path / f"shop_{tmp_path.name}"
    code.mkdir()
    return make_shop(instance, code)


@pytest.fixture(autouse=True)
def steady_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are to share a zygote need equal environments; this one differs for each test."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)


def make_shop(instance: DagsterInstance, code: Path) -> Shop:
    shop = Shop(instance, code)
    shop.module.write_text(SHOP)
    return shop


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


# ------------------------------------------------------------------------------------------ runs


@pytest.mark.service
def test_runs_are_forked_one_process_each_from_one_that_is_warm(shared_shop: Shop) -> None:
    first, second = shared_shop.launch(gated=True), shared_shop.launch(gated=True)
    one, two = first.facts, second.facts
    assert one["parent"] == two["parent"]
    assert len({one["pid"], two["pid"], one["parent"], os.getpid()}) == 4
    assert one["session"] == one["pid"], "a run is in a session of its own"
    assert one["cwd"] == str(Path.cwd())
    assert "fresh process" not in first.messages + second.messages
    second.open_gate()
    first.open_gate()
    assert (first.end(), second.end()) == (DagsterRunStatus.SUCCESS, DagsterRunStatus.SUCCESS)
    until(lambda: not list((shared_shop.directory / "runs").iterdir()))


@pytest.mark.service
def test_a_killed_process_fails_its_run_at_once_and_no_other(shared_shop: Shop) -> None:
    victim, other = shared_shop.launch(gated=True), shared_shop.launch(gated=True)
    bystander = other.facts["pid"]
    os.kill(victim.facts["pid"], signal.SIGKILL)
    killed_at = time.monotonic()
    assert victim.end() == DagsterRunStatus.FAILURE
    assert time.monotonic() - killed_at < 20
    assert "terminated by signal 9" in victim.messages
    assert alive(bystander)
    other.open_gate()
    assert other.end() == DagsterRunStatus.SUCCESS


@pytest.mark.service
def test_terminated_runs_end_canceled(shared_shop: Shop) -> None:
    errand = shared_shop.launch(gated=True)
    pid = errand.facts["pid"]
    assert shared_shop.launcher.can_terminate(errand.run_id)
    assert shared_shop.launcher.terminate(errand.run_id)
    assert errand.end() == DagsterRunStatus.CANCELED
    until(lambda: not alive(pid))
    assert not shared_shop.launcher.can_terminate(errand.run_id)
    assert not shared_shop.launcher.terminate(errand.run_id)


@pytest.mark.service
def test_a_run_terminated_before_its_first_step_ends_canceled(shared_shop: Shop) -> None:
    errand = shared_shop.launch(gated=True)
    shared_shop.launcher.terminate(errand.run_id)
    assert errand.end() == DagsterRunStatus.CANCELED


@pytest.mark.service
def test_a_run_gets_the_environment_of_its_launch(shared_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATELIER_PROBE", "before \udcff")
    before = shared_shop.launch()
    assert dict(os.environ).items() <= before.facts["environment"].items()
    monkeypatch.setenv("ATELIER_PROBE", "after")
    assert shared_shop.launch().facts["environment"]["ATELIER_PROBE"] == "after"


@pytest.mark.service
def test_a_run_writes_where_its_launcher_writes(shared_shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    errand = shared_shop.launch()
    assert errand.end() == DagsterRunStatus.SUCCESS
    assert errand.run_id in capfd.readouterr().err


@pytest.mark.service
def test_nothing_secret_is_in_arguments_or_readable_by_others(
    shared_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_PROBE", "hush-hush")
    parent = shared_shop.launch().facts["parent"]
    assert b"hush-hush" not in Path(f"/proc/{parent}/cmdline").read_bytes()
    assert shared_shop.directory.stat().st_mode & 0o777 == 0o700
    assert not [p for p in shared_shop.directory.rglob("*") if p.is_file() and b"hush-hush" in p.read_bytes()]


# ------------------------------------------------------------------------------------------ staleness


@pytest.mark.service
def test_changed_code_is_picked_up_and_running_runs_go_on(shop: Shop) -> None:
    old = shop.launch(gated=True)
    assert old.facts["version"] == "one"
    shop.module.write_text(SHOP.replace('VERSION = "one"', 'VERSION = "the second"'))
    new = shop.launch()
    assert new.facts["version"] == "the second"
    assert new.end() == DagsterRunStatus.SUCCESS
    until(lambda: not alive(new.facts["parent"]) or alive(old.facts["parent"]))
    os.kill(old.facts["pid"], signal.SIGKILL)
    assert old.end() == DagsterRunStatus.FAILURE, "a replaced zygote still watches its runs"
    until(lambda: not alive(old.facts["parent"]))


@pytest.mark.service
def test_a_reloaded_code_location_gets_a_new_process(shop: Shop) -> None:
    entry = SimpleNamespace(version_key="a")
    workspace = SimpleNamespace(get_location_entry=lambda name: entry)  # pyright: ignore[reportUnknownLambdaType]
    origin = SimpleNamespace(location_name="shop")

    def launch() -> int:
        errand = shop.create()
        context = SimpleNamespace(
            workspace=workspace,
            dagster_run=SimpleNamespace(
                run_id=errand.run_id, remote_job_origin=origin, job_code_origin=errand.run.job_code_origin
            ),
        )
        shop.launcher.launch_run(cast("Any", context))
        return errand.facts["parent"]

    before = launch()
    assert launch() == before
    entry.version_key = "b"
    after = launch()
    assert after != before
    assert launch() == after


# ------------------------------------------------------------------------------------------ what it survives


@pytest.mark.service
def test_a_killed_zygote_harms_no_run_and_is_replaced(shop: Shop) -> None:
    orphan = shop.launch(gated=True)
    os.kill(orphan.facts["parent"], signal.SIGKILL)
    until(lambda: not alive(orphan.facts["parent"]))
    assert shop.launch().end() == DagsterRunStatus.SUCCESS
    health = shop.launcher.check_run_worker_health(orphan.run)
    assert health.status == internals.WorkerStatus.RUNNING
    assert health.run_worker_id == str(orphan.facts["pid"])
    orphan.open_gate()
    assert orphan.end() == DagsterRunStatus.SUCCESS


@pytest.mark.service
def test_after_everything_was_killed_runs_are_known_to_be_dead(shop: Shop) -> None:
    errand, canceled = shop.launch(gated=True), shop.launch(gated=True)
    pids = [errand.facts["pid"], canceled.facts["pid"]]
    for pid in (errand.facts["parent"], *pids):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in pids))
    assert shop.launcher.supports_check_run_worker_health
    health = shop.launcher.check_run_worker_health(errand.run)
    assert health.status == internals.WorkerStatus.FAILED
    assert str(pids[0]) in (shop.launcher.get_run_worker_debug_info(errand.run) or "")
    assert shop.launcher.terminate(canceled.run_id)
    assert canceled.run.status == DagsterRunStatus.CANCELED


@pytest.mark.service
def test_code_that_starts_threads_is_never_forked(shop: Shop) -> None:
    starts = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    shop.module.write_text(starts + SHOP)
    first, second = shop.launch(), shop.launch()
    assert (first.end(), second.end()) == (DagsterRunStatus.SUCCESS, DagsterRunStatus.SUCCESS)
    assert "starts threads" in first.messages
    assert "starts threads" in second.messages


@pytest.mark.service
def test_a_fresh_process_is_watched_like_a_forked_one(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise client.ZygoteUnavailable("not on this system")

    monkeypatch.setattr(client, "launch_warm", refuse)
    killed, canceled, early = shop.launch(gated=True), shop.launch(gated=True), shop.launch(gated=True)
    shop.launcher.terminate(early.run_id)
    pid = canceled.facts["pid"]
    shop.launcher.terminate(canceled.run_id)
    os.kill(killed.facts["pid"], signal.SIGKILL)
    assert (killed.end(), canceled.end()) == (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
    assert early.end() == DagsterRunStatus.CANCELED
    assert "not on this system" in killed.messages
    assert "terminated by signal 9" in killed.messages
    until(lambda: not alive(pid) and not list((shop.directory / "runs").iterdir()))


@pytest.mark.service
def test_broken_definitions_fail_the_run_with_their_error(shop: Shop) -> None:
    shop.module.write_text("raise RuntimeError('the shop is closed')")
    errand = shop.launch()
    assert errand.end() == DagsterRunStatus.FAILURE
    assert "the shop is closed" in errand.messages


@pytest.mark.service
def test_when_nothing_can_be_started_the_run_fails_with_the_reason(shop: Shop) -> None:
    errand = shop.create(executable="/nowhere/python")
    with pytest.raises(client.LaunchFailed, match="/nowhere/python"):
        shop.instance.launch_run(errand.run_id, cast("Any", None))
    assert errand.run.status == DagsterRunStatus.FAILURE
    assert "/nowhere/python" in errand.messages


# ------------------------------------------------------------------------------------------ the end of zygotes


@pytest.mark.service
@pytest.mark.parametrize("why", ["idle", "home gone"])
def test_a_zygote_ends(tmp_path: Path, why: str) -> None:
    instance = make_home(tmp_path / "home", f"preload: [], idle_seconds: {0.1 if why == 'idle' else 1800.0}")
    code = tmp_path / "corner_shop"
    code.mkdir()
    shop = make_shop(instance, code)
    errand = shop.launch(gated=True)
    zygote, pid = errand.facts["parent"], errand.facts["pid"]
    if why == "idle":
        errand.open_gate()
        until(lambda: not alive(zygote))
        assert not list(shop.directory.glob("*.sock"))
    end_zygotes(instance)
    until(lambda: not alive(zygote) and not alive(pid))


@pytest.mark.service
def test_a_zygote_ends_with_the_last_process_that_used_it(shop: Shop) -> None:
    errand = shop.create()
    script = "import sys, dagster; dagster.DagsterInstance.from_config(sys.argv[1]).launch_run(sys.argv[2], None)"
    home = shop.instance.root_directory
    subprocess.run([sys.executable, "-c", script, home, errand.run_id], check=True, timeout=LIMIT)
    zygote = errand.facts["parent"]
    assert errand.end() == DagsterRunStatus.SUCCESS
    until(lambda: not alive(zygote))


# ------------------------------------------------------------------------------------------ parts


def test_a_run_is_taken_once(tmp_path: Path) -> None:
    directory = records.prepare(tmp_path / "launcher")
    record = records.claim(directory, "run-1")
    assert record is not None
    with record:
        assert records.claim(directory, "run-1") is None
    process = records.read(directory, "run-1")
    assert process is not None
    assert process.alive
    records.forget(directory, "run-1")
    assert records.read(directory, "run-1") is None


def test_a_process_is_not_mistaken_for_another_with_its_number() -> None:
    own = records.ProcessIdentity.own()
    assert own.alive
    for other in (replace(own, started=own.started + 1), replace(own, boot="another")):
        assert not other.alive
        assert not other.interrupt()


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", "a\x00", "x" * 129])
def test_run_ids_never_lead_out_of_the_directory(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(InvalidInput):
        records.claim(records.prepare(tmp_path / "launcher"), run_id)


def test_old_records_of_dead_processes_are_dropped(tmp_path: Path) -> None:
    directory = records.prepare(tmp_path / "launcher")
    dead = json.dumps({"pid": 1, "started": -1, "boot": ""})
    for name in ("old", "new"):
        (directory / "runs" / f"{name}.json").write_text(dead)
    record = records.claim(directory, "mine")
    assert record is not None
    record.close()
    for name in ("old", "mine"):
        os.utime(directory / "runs" / f"{name}.json", (0, 0))
    records.sweep(directory)
    assert {path.stem for path in (directory / "runs").iterdir()} == {"new", "mine"}


def an_order(directory: Path, *, deadline: float) -> wire.Order:
    return wire.Order(
        run_id="run-1", directory=str(directory), cwd="/", deadline=deadline, not_before=0.0,
        instance_ref="secret-ref", environment={"NAME": "secret \udcff"},
    )  # fmt: skip


def test_an_order_that_comes_too_late_is_not_taken(tmp_path: Path) -> None:
    directory = records.prepare(tmp_path / "launcher")
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            command = [sys.executable, "-m", worker.__name__, "once", str(theirs.fileno())]
            subprocess.run(command, pass_fds=(theirs.fileno(),), check=True, timeout=LIMIT)
        wire.send(ours, an_order(directory, deadline=time.monotonic() - 1))
        ours.settimeout(LIMIT)
        assert "too late" in wire.receive_reply(ours).refused
    assert records.read(directory, "run-1") is None


def test_orders_travel_whole_and_are_not_shown(tmp_path: Path) -> None:
    order = an_order(tmp_path, deadline=1.5)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(ours, order, (0,))
        received, fds = wire.receive_order(theirs)
    assert received == order
    assert len(fds) == 1
    os.close(fds[0])
    assert "secret" not in repr(order)


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02{", b"\x00\x00\x00\x02{}", b"\0\0\0\1x"]
)
def test_what_is_no_order_is_refused(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(data)
        with pytest.raises(wire.ConversationEnded):
            wire.receive_order(theirs)


def test_runs_of_other_launchers_are_left_to_them(tmp_path: Path) -> None:
    class Home:
        def storage_directory(self) -> str:
            return str(tmp_path)

    home, launcher = Home(), WarmRunLauncher()
    launcher.register_instance(cast("Any", home))
    own, other = SimpleNamespace(run_id="a", tags={}), SimpleNamespace(run_id="b", tags={internals.GRPC_INFO_TAG: "{}"})
    assert launcher.check_run_worker_health(cast("Any", own)).status == internals.WorkerStatus.NOT_FOUND
    assert launcher.check_run_worker_health(cast("Any", other)).status == internals.WorkerStatus.RUNNING


def test_the_private_parts_of_dagster_are_still_there() -> None:
    """When an upgrade breaks this, read `internals` against the new `dagster api execute_run`."""
    from dagster._grpc.impl import core_execute_run

    assert list(inspect.signature(core_execute_run).parameters)[:4] == [
        "recon_job",
        "dagster_run",
        "instance",
        "inject_env_vars",
    ]
    for name in ("report_run_failed", "report_run_canceled", "report_run_canceling", "report_engine_event", "get_ref"):
        assert callable(getattr(DagsterInstance, name))
    for name in internals.LAZY_MODULES:
        importlib.import_module(name)
    assert internals.GRPC_INFO_TAG == ".dagster/grpc_info"
