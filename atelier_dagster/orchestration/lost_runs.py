"""Runs whose process is gone without a word: Dagster leaves them STARTED, and the ticket's queue behind them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import dagster as dg

_GRACE_SECONDS = 60.0
"""A run younger than this may not have a process yet."""


def fail_lost_runs(instance: dg.DagsterInstance, grace_seconds: float = _GRACE_SECONDS) -> Sequence[str]:
    """Fail every started run whose launcher says that its process is gone; returns their ids.

    Works with launchers that can tell (`supports_check_run_worker_health`); asks nothing of others.
    """
    launcher = instance.run_launcher
    if not launcher.supports_check_run_worker_health:
        return ()
    filters = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING])
    lost: list[str] = []
    for record in instance.get_run_records(filters, limit=200):
        if time.time() - (record.start_time or record.create_timestamp.timestamp()) < grace_seconds:
            continue
        health = launcher.check_run_worker_health(record.dagster_run)
        if health.status.value in ("FAILED", "NOT_FOUND"):
            instance.report_run_failed(
                record.dagster_run, f"the process of the run is gone ({health.msg or 'no word'})"
            )
            lost.append(record.dagster_run.run_id)
    return lost
