"""Artifacts between steps: written once under their hash, and loaded only while they are current."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import dagster as dg

from atelier_dagster.artifacts import ArtifactStore, Ledger
from atelier_dagster.factory.errors import AtelierError, NotFound, StaleInput
from atelier_dagster.factory.lineage import ASSETS, UPSTREAM, Artifact
from atelier_dagster.orchestration.failures import as_failure
from atelier_dagster.orchestration.history import HistoryReader


def closure(asset: str) -> tuple[str, ...]:
    """An asset and all that its currency depends on, in the journey's order."""
    needed = {"ticket", "merge", asset}
    todo = list(needed)
    while todo:
        fresh = [a for a in UPSTREAM.get(todo.pop(), ()) if a not in needed]
        needed.update(fresh)
        todo.extend(fresh)
    return tuple(a for a in ASSETS if a in needed)


class ArtifactIOManager(dg.IOManager):
    """Dagster's way to the artifact store. One is made a run, so what it has read it need not read again."""

    def __init__(self, store: ArtifactStore, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._readers: dict[str, HistoryReader] = {}

    def handle_output(self, context: dg.OutputContext, obj: Artifact[Any]) -> None:
        """Keep an artifact, and note it in the ticket's ledger."""
        asyncio.run(self._keep(context, obj))

    def load_input(self, context: dg.InputContext) -> Artifact[Any]:
        """The upstream's current artifact. Fails with `STALE_INPUT` or `NOT_FOUND`, saying what to rematerialize."""
        try:
            return asyncio.run(self._load(context))
        except AtelierError as error:
            raise as_failure(error) from error

    async def _keep(self, context: dg.OutputContext, artifact: Artifact[Any]) -> None:
        sha = await self._store.put(artifact)
        await self._ledger.append(
            artifact.ticket, asset=artifact.asset, sha256=sha, cycle=artifact.cycle, run_id=context.run_id
        )

    async def _load(self, context: dg.InputContext) -> Artifact[Any]:
        asset, partition = context.asset_key.path[-1], context.asset_partition_key
        if partition not in self._readers:
            self._readers[partition] = HistoryReader(context.instance, self._store, partition)
        history = await self._readers[partition].read(closure(asset))
        entry = history.current(asset)
        if entry is not None:
            return cast(Artifact[Any], entry.artifact)
        reason = history.stale_reason(asset) or "it is not current"
        if history.latest(asset) is None:
            raise NotFound(f"{asset} has not been materialized for {partition}", fix=reason)
        raise StaleInput(f"{asset} no longer follows from the current artifacts of {partition}", fix=reason)
