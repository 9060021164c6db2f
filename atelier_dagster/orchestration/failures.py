"""How a typed error becomes a failed Dagster step that a person can read and routing can match."""

from __future__ import annotations

import dagster as dg

from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.orchestration import tags


def as_failure(error: AtelierError) -> dg.Failure:
    """A step failure with the error's code and fix. Never retried by Dagster: only routing restarts."""
    return dg.Failure(
        description=str(error),
        metadata={"code": error.code, "what to do": error.fix or "see the message", "may pass later": error.transient},
        allow_retries=False,
    )


def note_error(instance: dg.DagsterInstance, run_id: str, error: AtelierError) -> None:
    """Leave the error's code on the run, where routing finds it without reading logs."""
    instance.add_run_tags(run_id, {tags.ERROR: error.code})
