"""The run launcher of a single machine: each run in a process of its own, forked from one that is already warm."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from dagster import Array, DagsterInstance, DagsterRun, Field, Float
from dagster import StringSource as String

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.orchestration._warm import client, records
from atelier_dagster.orchestration._warm.internals import (
    GRPC_INFO_TAG,
    CheckRunHealthResult,
    ConfigurableClass,
    ConfigurableClassData,
    LaunchRunContext,
    RunLauncher,
    WorkerStatus,
    serialize_value,
)

DEFAULT_PRELOAD = ("httpx", "jinja2", "openai", "pathspec", "stamina", "yaml")
DEFAULT_WATCH = ("atelier.toml", ".env")
_REFUSAL_SECONDS = 60.0


class WarmRunLauncher(RunLauncher[DagsterInstance], ConfigurableClass):
    """Starts each run by a fork from a process that has imported Dagster and the definitions, in about 0.1 s.

    In `dagster.yaml`:

        run_launcher:
          module: atelier_dagster.orchestration.launcher
          class: WarmRunLauncher
          config: {idle_seconds: 1800}

    The warm process belongs to the instance's storage directory, code, environment and working directory. It starts
    with the first run, is replaced when a file it has imported changes, and ends when it is idle or when every
    process that used it has ended. Where there can be none, runs start in fresh interpreters, and the run says why.
    Runs survive the end of the process that launched them.
    """

    def __init__(
        self,
        *,
        inst_data: ConfigurableClassData | None = None,
        preload: tuple[str, ...] = DEFAULT_PRELOAD,
        watch: tuple[str, ...] = DEFAULT_WATCH,
        idle_seconds: float = 1800.0,
        start_timeout: float = 60.0,
    ) -> None:
        """Times are in seconds.

        `preload` names modules to import besides the definitions; none may start a thread. `watch` names files,
        relative to the working directory, that definitions read when they are imported.
        """
        super().__init__()
        self._inst_data = inst_data
        self._preload = preload
        self._watch = watch
        self._idle_seconds = idle_seconds
        self._start_timeout = start_timeout
        self._versions: dict[str, tuple[str, float]] = {}
        self._refusals: dict[str, tuple[str, float]] = {}

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        """What `dagster.yaml` says."""
        return self._inst_data

    @classmethod
    def config_type(cls) -> dict[str, Field]:
        """The configuration that `dagster.yaml` may have."""
        return {
            "preload": Field(Array(String), is_required=False, default_value=list(DEFAULT_PRELOAD)),
            "watch": Field(Array(String), is_required=False, default_value=list(DEFAULT_WATCH)),
            "idle_seconds": Field(Float, is_required=False, default_value=1800.0),
            "start_timeout": Field(Float, is_required=False, default_value=60.0),
        }

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]) -> Self:
        """Called by Dagster with validated configuration."""
        return cls(
            inst_data=inst_data,
            preload=tuple(config_value["preload"]),
            watch=tuple(config_value["watch"]),
            idle_seconds=config_value["idle_seconds"],
            start_timeout=config_value["start_timeout"],
        )

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start a process that takes the run. Dagster turns any error into the run's FAILURE."""
        run = context.dagster_run
        target = self._target(run)
        not_before = self._reloaded_at(context)
        try:
            self._launch_warm(target, run.run_id, not_before)
        except client.ZygoteUnavailable as error:
            if records.read(target.directory, run.run_id) is not None:
                return
            self._instance.report_engine_event(f"Starting a fresh process for the run: {error}", run)
            self._launch_fresh(target, run.run_id)

    def terminate(self, run_id: str) -> bool:
        """Interrupt a run, which then ends CANCELED. False if it had already ended."""
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        records.wait_until_started(self._directory(), run_id, self._start_timeout)
        self._instance.report_run_canceling(run)
        process = records.read(self._directory(), run_id)
        if process is None or not process.interrupt():
            self._instance.report_run_canceled(run, "The run's process had already ended.")
        return True

    def can_terminate(self, run_id: str) -> bool:
        """Whether a run has not ended yet."""
        run = self._instance.get_run_by_id(run_id)
        return run is not None and not run.is_finished

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Run monitoring can find out whether a run's process is there, also after everything was killed."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Whether the process that took a run still runs."""
        process = records.read(self._directory(), run.run_id)
        if process is None:
            if GRPC_INFO_TAG in run.tags:
                return CheckRunHealthResult(WorkerStatus.RUNNING, "started by a code server, which watches it")
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "no process has taken the run")
        worker = str(process.pid)
        if process.alive:
            return CheckRunHealthResult(WorkerStatus.RUNNING, run_worker_id=worker)
        return CheckRunHealthResult(WorkerStatus.FAILED, f"process {worker} has ended", run_worker_id=worker)

    def get_run_worker_debug_info(self, run: DagsterRun, include_container_logs: bool | None = True) -> str | None:  # noqa: ARG002
        """For the message of a run that run monitoring fails."""
        process = records.read(self._directory(), run.run_id)
        return None if process is None else f"Process {process.pid}, {'running' if process.alive else 'ended'}."

    def _directory(self) -> Path:
        return records.prepare(Path(self._instance.storage_directory()) / "launcher")

    def _target(self, run: DagsterRun) -> client.Target:
        if run.job_code_origin is None:
            raise InvalidInput(
                f"run {run.run_id} does not say where its code is", fix="launch runs from a loaded code location"
            )
        origin = run.job_code_origin.repository_origin
        return client.Target(
            directory=self._directory(),
            executable=origin.executable_path,
            origin=serialize_value(origin),
            cwd=str(Path.cwd()),
            preload=self._preload,
            watch=self._watch,
            environment=dict(os.environ),
            instance_ref=serialize_value(self._instance.get_ref()),
        )

    def _launch_warm(self, target: client.Target, run_id: str, not_before: float) -> None:
        name = target.socket_name
        reason, until = self._refusals.get(name, ("", 0.0))
        if time.monotonic() < until:
            raise client.ZygoteRefused(reason)
        try:
            client.launch_warm(
                target,
                run_id,
                not_before=not_before,
                idle_seconds=self._idle_seconds,
                start_timeout=self._start_timeout,
            )
        except client.ZygoteRefused as error:
            self._refusals = {name: (error.message, time.monotonic() + _REFUSAL_SECONDS)}
            raise

    def _launch_fresh(self, target: client.Target, run_id: str) -> None:
        try:
            client.launch_fresh(target, run_id)
        except client.LaunchFailed:
            if records.read(target.directory, run_id) is None:
                raise

    def _reloaded_at(self, context: LaunchRunContext) -> float:
        """When this process saw the run's code location reloaded, in seconds since the epoch; 0 if it did not."""
        origin = context.dagster_run.remote_job_origin
        entry = context.workspace.get_location_entry(origin.location_name) if context.workspace and origin else None
        if origin is None or entry is None:
            return 0.0
        version, since = self._versions.get(origin.location_name, (entry.version_key, 0.0))
        if version != entry.version_key:
            since = time.time()
        self._versions[origin.location_name] = (entry.version_key, since)
        return since
