"""Artifacts between steps: written once under their hash, and loaded only while they are current."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import dagster as dg

from atelier_dagster.artifacts import ArtifactStore, Ledger
from atelier_dagster.factory.errors import AtelierError, NotFound, StaleInput
from atelier_dagster.factory.lineage import Artifact, History
from atelier_dagster.orchestration.failures import as_failure, note_error
from atelier_dagster.orchestration.history import run_history


class ArtifactIOManager(dg.IOManager):
    """Dagster's way to the artifact store. One is made a run, so what it has read it need not read again."""

    def __init__(self, store: ArtifactStore, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._seen: tuple[str, str, History] | None = None

    def handle_output(self, context: dg.OutputContext, obj: Artifact[Any]) -> None:
        """Keep an artifact, and note it in the ticket's ledger. Fails with the store's typed error."""
        try:
            asyncio.run(self._keep(context, obj))
        except AtelierError as error:
            note_error(context.step_context.instance, context.run_id, error)
            raise as_failure(error) from error

    def load_input(self, context: dg.InputContext) -> Artifact[Any]:
        """The upstream's current artifact. Fails with `STALE_INPUT` or `NOT_FOUND`, saying what to rematerialize."""
        try:
            return asyncio.run(self._load(context))
        except AtelierError as error:
            note_error(context.instance, context.step_context.run_id, error)
            raise as_failure(error) from error

    async def _keep(self, context: dg.OutputContext, artifact: Artifact[Any]) -> None:
        sha = await self._store.put(artifact)
        await self._ledger.append(
            artifact.ticket,
            asset=artifact.asset,
            sha256=sha,
            cycle=artifact.cycle,
            run_id=context.run_id,
            time=datetime.now(UTC),
            metadata=_unhashed(context),
        )

    async def _load(self, context: dg.InputContext) -> Artifact[Any]:
        asset, partition = context.asset_key.path[-1], context.asset_partition_key
        history = await self._history(context, partition)
        entry = history.current(asset)
        if entry is not None:
            return entry.artifact
        reason = history.stale_reason(asset) or "it is not current"
        if history.latest(asset) is None:
            raise NotFound(f"{asset} has not been materialized for {partition}", fix=reason)
        raise StaleInput(f"{asset} no longer follows from the current artifacts of {partition}", fix=reason)

    async def _history(self, context: dg.InputContext, partition: str) -> History:
        """Read once a step: nothing of this ticket is materialized between two inputs of one step."""
        step = context.op_def.name
        if self._seen is None or self._seen[:2] != (step, partition):
            run_id = context.step_context.run_id
            history = await run_history(context.instance, self._store, partition, run_id).read()
            self._seen = (step, partition, history)
        return self._seen[2]


_UNHASHED = ("tokens in", "tokens out", "cost (USD)", "model", "duration")


def _unhashed(context: dg.OutputContext) -> dict[str, str | int | float]:
    """What an auditor wants to know of a step and its artifact's hash leaves out."""
    shown = cast(Mapping[str, dg.MetadataValue[Any]], context.output_metadata or {})
    return {name: shown[name].value for name in _UNHASHED if name in shown}
