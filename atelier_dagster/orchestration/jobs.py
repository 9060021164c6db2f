"""The three jobs of a ticket, all in process: concurrency belongs inside a step, where it waits for others."""

from __future__ import annotations

from functools import cache
from typing import Any

import dagster as dg

from atelier_dagster.factory.lineage import JOBS

DELIVER, RELEASE, CLOSE = "deliver", "release", "close"

_DESCRIPTIONS = {
    DELIVER: "From the ticket to an open pull request.",
    RELEASE: "A human's decision, the merge that follows from it, and QA on the merged code.",
    CLOSE: "The end of a cycle: the ticket is told, workshops are removed.",
}


@cache
def build_jobs() -> tuple[Any, ...]:
    """The jobs, each selecting its assets of the journey. The same objects each time: sensors name them too."""
    return tuple(
        dg.define_asset_job(  # pyright: ignore[reportUnknownMemberType]
            name,
            selection=dg.AssetSelection.assets(*assets),
            executor_def=dg.in_process_executor,
            description=_DESCRIPTIONS[name],
        )
        for name, assets in JOBS.items()
    )
