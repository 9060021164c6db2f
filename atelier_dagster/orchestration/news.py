"""What sensors tell a ticket: that a run failed and how to go on, or what it waits for."""

from __future__ import annotations

import logging

import dagster as dg

from atelier_dagster.delivery.tell import tell
from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.factory.messages import run_failed, waits
from atelier_dagster.factory.routing import WaitKind, WaitStep
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.orchestration import tags
from atelier_dagster.ports import Tracker

_TOLD_BY_STEPS = {WaitKind.APPROVAL, WaitKind.PLAN_REVIEW, WaitKind.NOT_STARTED}
"""Waits that a step of the journey has already explained to people."""


def failed_step(instance: dg.DagsterInstance, run: dg.DagsterRun) -> tuple[str, str]:
    """Which step of a failed run failed, and its message; ("", ...) when its process ended without a word."""
    records = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE, limit=5).records
    for record in records:
        event = record.event_log_entry.dagster_event
        if event is None:
            continue
        user = event.step_failure_data.user_failure_data
        error = event.step_failure_data.error
        cause = error.cause if error and error.cause else error
        message = (user.description if user else None) or (cause.message if cause else "no message")
        return event.step_key or "", message.strip()
    return "", "the process of the run ended without a word"


async def tell_failure(instance: dg.DagsterInstance, tracker: Tracker, run: dg.DagsterRun, log: logging.Logger) -> None:
    """Tell the ticket which step failed and how to go on. Not being able to must not stop the ticket."""
    step, message = failed_step(instance, run)
    partition = run.tags[tags.PARTITION]
    try:
        key = TicketKey.from_partition(partition)
        await tell(tracker, key, "failure", run_failed(step, message, run.run_id))
    except AtelierError as error:  # a partition that somebody made by hand may be no ticket at all
        log.warning(f"{partition}: could not tell that run {run.run_id} failed: {error}")


async def tell_waiting(tracker: Tracker, partition: str, step: WaitStep, log: logging.Logger) -> None:
    """Tell the ticket what it waits for, unless a step has done so."""
    if step.kind in _TOLD_BY_STEPS:
        return
    try:
        key = TicketKey.from_partition(partition)
        await tell(tracker, key, "waiting", waits(step.kind.value, step.reason))
    except AtelierError as error:
        log.warning(f"{partition}: could not tell what it waits for: {error}")
