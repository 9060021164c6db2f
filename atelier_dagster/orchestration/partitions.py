"""The one partitions definition: every ticket is a partition. Keys are made by `TicketKey.partition`."""

from __future__ import annotations

import dagster as dg

TICKETS = "tickets"

tickets_partitions = dg.DynamicPartitionsDefinition(name=TICKETS)


def add_tickets(instance: dg.DagsterInstance, partitions: list[str]) -> None:
    """Make partitions, all in one statement. Known ones are left alone; none is ever deleted."""
    if partitions:
        instance.add_dynamic_partitions(TICKETS, partitions)


def is_known(instance: dg.DagsterInstance, partition: str) -> bool:
    """Whether a ticket has been taken in."""
    return instance.has_dynamic_partition(TICKETS, partition)
