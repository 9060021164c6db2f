"""How long a run takes to start under Dagster's default launcher and under the warm one.

`uv run python benchmarks/launcher.py [RUNS]` prints medians in seconds, counted from the event that Dagster writes just
before it calls the launcher, and their ratio. The first warm run also starts the warm process and is shown apart.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from dagster import DagsterEventType, DagsterInstance, Definitions
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget

LIMIT = 300.0
MODULE = "benchmarked_definitions"
CODE = """
import httpx, jinja2, openai
from dagster import Definitions, in_process_executor, job, op

@op
def thing():
    return 1

@job(executor_def=in_process_executor)
def things():
    thing()

defs = Definitions(jobs=[things])
"""
WARM = """
run_launcher:
  module: atelier_dagster.orchestration.launcher
  class: WarmRunLauncher
"""


def launch(instance: DagsterInstance, workspaces: WorkspaceProcessContext) -> str:
    """Launch a run as the run queue's daemon does; its id."""
    workspace = workspaces.create_request_context()
    (repository,) = workspace.get_code_location(MODULE).get_repositories().values()
    remote = repository.get_full_job("things")
    definitions = importlib.import_module(MODULE).defs
    assert isinstance(definitions, Definitions)
    run = instance.create_run_for_job(
        definitions.resolve_job_def("things"),
        remote_job_origin=remote.get_remote_origin(),
        job_code_origin=remote.get_python_origin(),
    )
    # The queue has written an event before it launches, and with it made the run's event log.
    instance.report_engine_event("queued", run)
    instance.launch_run(run.run_id, workspace)
    return run.run_id


def wait(instance: DagsterInstance, run_id: str) -> None:
    """Wait for the end of a run, so that runs do not compete."""
    ends, pause = time.monotonic() + LIMIT, threading.Event()
    while time.monotonic() < ends:
        run = instance.get_run_by_id(run_id)
        if run is not None and run.is_finished:
            return
        pause.wait(0.1)
    raise TimeoutError(f"run {run_id} did not end within {LIMIT:.0f} s")


def times(instance: DagsterInstance, run_id: str) -> tuple[float, float]:
    """Seconds from the call of the launcher to the start of the run, and to that of its first step."""
    first: dict[DagsterEventType, float] = {}
    for record in instance.all_logs(run_id):
        if record.dagster_event is not None:
            first.setdefault(record.dagster_event.event_type, record.timestamp)
    called = first[DagsterEventType.RUN_STARTING]
    return first[DagsterEventType.RUN_START] - called, first[DagsterEventType.STEP_START] - called


def measure(home: Path, configuration: str, runs: int) -> list[tuple[float, float]]:
    """Times of `runs` runs, one after the other, on a new instance with a code server."""
    home.mkdir()
    (home / "dagster.yaml").write_text(f"telemetry: {{enabled: false}}\n{configuration}")
    measured: list[tuple[float, float]] = []
    target = ModuleTarget(module_name=MODULE, attribute=None, working_directory=str(home.parent), location_name=MODULE)
    with (
        DagsterInstance.from_config(str(home)) as instance,
        WorkspaceProcessContext(instance, target) as workspaces,
    ):
        for _ in range(runs):
            run_id = launch(instance, workspaces)
            wait(instance, run_id)
            measured.append(times(instance, run_id))
    return measured


def show(name: str, measured: list[tuple[float, float]]) -> float:
    """Print medians; the one to the first step."""
    start, step = (statistics.median(column) for column in zip(*measured, strict=True))
    print(f"{name:<22} run start {start:6.2f} s   first step {step:6.2f} s   ({len(measured)} runs)")
    return step


def main() -> None:
    """Print the comparison."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory(prefix="atelier-benchmark-") as name:
        home = Path(name)
        (home / f"{MODULE}.py").write_text(CODE)
        sys.path.append(name)
        default = measure(home / "default", "", runs)
        cold, *warm = measure(home / "warm", WARM, runs + 1)
    before = show("default launcher", default)
    show("warm launcher, first", [cold])
    after = show("warm launcher", warm)
    print(f"ratio to the first step: {before / after:.1f}   (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)")


if __name__ == "__main__":
    main()
