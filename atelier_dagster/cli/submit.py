"""`atelier submit`: start a ticket, go on with one that stands still, or start the next cycle of one that has ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from atelier_dagster.cli import output, workbench
from atelier_dagster.cli.home import webserver_url
from atelier_dagster.factory.errors import Refused, Unavailable
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.by_hand import BY_HAND
from atelier_dagster.orchestration.client import DagsterClient
from atelier_dagster.orchestration.orders import RunOrder, deliver_order
from atelier_dagster.settings import Settings, load_settings


@dataclass(frozen=True)
class Submitted:
    """What submitting led to. `started` False: a run was going on already."""

    ticket: str
    run_id: str
    job: str
    started: bool
    reason: str
    url: str

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return dict(vars(self))


def run(ticket: str, *, as_json: bool) -> None:
    """The command."""
    settings = load_settings()
    submitted = submit(settings, workbench.parse_ticket(ticket))
    if as_json:
        output.print_json(submitted.as_json())
        return
    what = "started" if submitted.started else "goes on already"
    output.stdout().print(f"{submitted.ticket}: {submitted.job} {what} ({submitted.reason})", markup=False)
    output.say(submitted.url)


def submit(settings: Settings, key: TicketKey) -> Submitted:
    """Launch what follows for a ticket.

    Raises `Unavailable` (no webserver), `NotFound` (no such ticket), `Refused` (it waits for a decision).
    """
    if key.repo.tracker == workbench.LOCAL:
        asyncio.run(workbench.local_tracker(settings).get_issue(key))  # a typing mistake makes no partition
    with DagsterClient(webserver_url(settings)) as client:
        if not client.is_up():
            raise Unavailable(f"no Dagster webserver answers at {client.url}", fix="start it with `atelier dev`")
        is_new = client.add_ticket(key.partition)
        if not is_new and (running := client.active_runs(key.partition)):
            return _submitted(client, key, running[0].run_id, running[0].job, started=False, reason="a run is going on")
        order = _resume(settings, key) if not is_new else deliver_order(key.partition, 1, BY_HAND, by_hand=True)
        launched = client.launch(order)
        return _submitted(client, key, launched.run_id, order.job, started=True, reason=order.tags[tags.REASON])


def _submitted(
    client: DagsterClient, key: TicketKey, run_id: str, job: str, *, started: bool, reason: str
) -> Submitted:
    return Submitted(str(key), run_id, job, started, reason, f"{client.url}/runs/{run_id}")


def _resume(settings: Settings, key: TicketKey) -> RunOrder:
    """What follows for a ticket that is known, by its history; this takes Dagster's import."""
    from atelier_dagster.cli.resume import resume_order

    order = resume_order(settings, key)
    if order is None:
        raise Refused(
            f"{key} waits for a decision about its pull request",
            fix=f"decide: atelier approve|reject|request-changes '{key}'",
            code="WAITS_FOR_DECISION",
        )
    return order
