"""A tiny assembly line of three assets under names of the journey, run in process on a real store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg

from atelier_dagster.artifacts import ArtifactStore, Ledger
from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.factory.lineage import Artifact
from atelier_dagster.factory.plan import Plan, SubTask
from atelier_dagster.factory.ticket import Analysis, Ticket
from atelier_dagster.orchestration.io_manager import ArtifactIOManager
from atelier_dagster.orchestration.partitions import add_tickets
from atelier_dagster.orchestration.step import IO_MANAGER, Made, journey_asset, ticket_key
from tests.support.ticks import Ticks


class Line:
    """`ticket` -> `analysis` (a gate) -> `plan`; a test says what each does next."""

    def __init__(self, house: Ticks, partition: str = "local~demo~shop~1", store: ArtifactStore | None = None) -> None:
        self.house = house
        self.partition = partition
        self.title = "Sort"
        self.open = True
        self.error: AtelierError | None = None
        self.read: list[Artifact[Any]] = []
        self.objects = (store or house.store).objects
        add_tickets(house.instance, [partition])
        line = self

        @journey_asset(kinds={"python"})
        async def ticket(context: dg.AssetExecutionContext) -> Made:
            """The ticket."""
            key = ticket_key(context)
            value = Ticket(key=key, title=line.title, body="", author="bob", base_branch="main")
            return Made(value, cycle=1, metadata={"tokens in": 7, "cost (USD)": 0.25, "secret": "not for the ledger"})

        @journey_asset(kinds={"python"}, gate=True)
        async def analysis(context: dg.AssetExecutionContext, ticket: Artifact[Ticket]) -> Made | None:
            """The analysis."""
            line.read.append(ticket)
            if line.error:
                raise line.error
            return Made(Analysis(job_story=ticket.value.title, criteria=("one",))) if line.open else None

        @journey_asset(kinds={"python"})
        async def plan(
            context: dg.AssetExecutionContext, ticket: Artifact[Ticket], analysis: Artifact[Analysis]
        ) -> Made:
            """The plan."""
            line.read += [ticket, analysis]
            return Made(Plan(tasks=(SubTask(id="t1", title="all", scope=("**",)),)), attempt=3)

        self.assets = [ticket, analysis, plan]

    def run(self, *assets: str) -> dg.ExecuteInProcessResult:
        """Materialize some assets (all by default) as one run."""
        return dg.materialize(
            self.assets,
            instance=self.house.instance,
            partition_key=self.partition,
            selection=list(assets) or None,
            resources={IO_MANAGER: ArtifactIOManager(ArtifactStore(self.objects), Ledger(self.objects))},
            raise_on_error=False,
        )


def made(result: dg.ExecuteInProcessResult) -> list[str]:
    """Assets that a run materialized, in order."""
    return [event.asset_key.path[-1] for event in result.get_asset_materialization_events() if event.asset_key]


def failure(result: dg.ExecuteInProcessResult) -> tuple[str, dict[str, Any]]:
    """Description and metadata of the failure that a person sees in the UI."""
    (event,) = [event for event in result.all_node_events if event.is_step_failure]
    user = event.step_failure_data.user_failure_data
    assert user, event
    return user.description or "", {name: value.value for name, value in user.metadata.items()}


def skipped(result: dg.ExecuteInProcessResult) -> Sequence[str]:
    """Steps that did not run because something above yielded nothing."""
    return [str(event.step_key) for event in result.all_events if event.event_type_value == "STEP_SKIPPED"]
