"""Which run `atelier submit` launches for a ticket that is known. Reads the history; launching is `submit`'s."""

from __future__ import annotations

import asyncio

from atelier_dagster.cli import workbench
from atelier_dagster.cli.standing import open_instance, read_history
from atelier_dagster.factory.routing import RunStep
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.orchestration.by_hand import order_for, step_by_hand
from atelier_dagster.orchestration.launch import last_decision, repeated_tags
from atelier_dagster.orchestration.orders import RunOrder
from atelier_dagster.settings import Settings


def resume_order(settings: Settings, key: TicketKey) -> RunOrder | None:
    """The run that follows now, or None when only a decision about the pull request helps."""
    with open_instance(settings) as instance:
        history = asyncio.run(read_history(instance, workbench.artifact_store(settings), key.partition))
        step = step_by_hand(history, settings.policy)
        extra = repeated_tags(instance, step) if isinstance(step, RunStep) else {}
        return order_for(step, history, last_decision(instance, key.partition), extra)
