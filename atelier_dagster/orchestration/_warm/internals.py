"""Everything that the launcher uses of Dagster without its promise. Tests pin it; nothing else belongs here."""

from __future__ import annotations

from collections.abc import Callable

from dagster import DagsterEventType, DagsterInstance, DagsterRunStatus
from dagster._core.events import EngineEventData
from dagster._core.instance import InstanceRef
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._core.origin import RepositoryPythonOrigin
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._grpc.impl import core_execute_run
from dagster._serdes import ConfigurableClass, ConfigurableClassData, deserialize_value, serialize_value
from dagster._utils import get_run_crash_explanation
from dagster._utils.hosted_user_process import recon_job_from_origin, recon_repository_from_origin
from dagster._utils.interrupts import capture_interrupts

__all__ = [
    "GRPC_INFO_TAG",
    "LAZY_MODULES",
    "CheckRunHealthResult",
    "ConfigurableClass",
    "ConfigurableClassData",
    "LaunchRunContext",
    "RunLauncher",
    "WorkerStatus",
    "capture_interrupts",
    "execute_run",
    "load_definitions",
    "open_instance",
    "report_dead_run",
    "serialize_value",
]

LAZY_MODULES = (
    "dagster._core.execution.plan.active",
    "dagster._core.executor.in_process",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.system_config.composite_descent",
)
"""What a run would import first thing."""


def open_instance(instance_ref: str) -> DagsterInstance:
    """The instance that a serialized reference names. Use as a context manager."""
    return DagsterInstance.from_ref(deserialize_value(instance_ref, InstanceRef))


def load_definitions(origin: str) -> None:
    """Import what a serialized repository origin names and build its jobs, so that forks find them in memory."""
    repository = recon_repository_from_origin(deserialize_value(origin, RepositoryPythonOrigin))
    repository.get_definition().get_all_jobs()


def execute_run(instance: DagsterInstance, run_id: str, pid: int, *, on_started: Callable[[], None]) -> bool:
    """Execute a launched run in this process, as `dagster api execute_run` does. True once the run is finished.

    There is no public call for this. `core_execute_run` is what both the command line and the code server end in;
    it writes every failure to the event log before it raises. `on_started` is called when the run is STARTED.
    """
    run = instance.get_run_by_id(run_id)
    if run is None or run.job_code_origin is None:
        raise LookupError(f"run {run_id} was deleted, or does not say where its code is")
    if run.status == DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, "The run was canceled before it started.")
        return True
    instance.report_engine_event(f"Started process for run (pid: {pid}).", run, EngineEventData.in_process(pid))
    try:
        job = recon_job_from_origin(run.job_code_origin)
        for event in core_execute_run(job, run, instance, inject_env_vars=True):
            if event.event_type == DagsterEventType.RUN_START:
                on_started()
    finally:
        instance.report_engine_event(f"Process for run exited (pid: {pid}).", run)
    ended = instance.get_run_by_id(run_id)
    return ended is None or ended.is_finished


def report_dead_run(instance: DagsterInstance, run_id: str, exit_code: int) -> None:
    """End a run whose process ended before it: CANCELED if that was asked for, else FAILURE with the reason."""
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished:
        return
    message = get_run_crash_explanation(f"Run execution process for {run_id}", exit_code)
    instance.report_engine_event(message, run)
    if run.status == DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, message)
    else:
        instance.report_run_failed(run, message)
