"""What a ticket has cost so far, as its materializations say. Read back from metadata, since cost is no content."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from atelier_dagster.factory.lineage import ASSETS

_TOKENS_IN, _TOKENS_OUT, _COST, _CALLS = "tokens in", "tokens out", "cost (USD)", "model calls"


@dataclass(frozen=True)
class Spend:
    """Sums over a ticket. `cost_usd` None: no call told its cost."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None

    def as_metadata(self) -> dict[str, Any]:
        """For the UI."""
        cost = {} if self.cost_usd is None else {"total cost so far (USD)": self.cost_usd}
        return {"total tokens so far": f"{self.tokens_in} in, {self.tokens_out} out", **cost}

    def in_words(self) -> str:
        """For people."""
        cost = "" if self.cost_usd is None else f", ${self.cost_usd:.4f}"
        return f"{self.calls} model calls, {self.tokens_in} tokens in, {self.tokens_out} out{cost}"


def spent_so_far(instance: dg.DagsterInstance, partition: str) -> Spend:
    """Sum over every materialization of a ticket, redone ones included: they were paid too."""
    calls = tokens_in = tokens_out = 0
    cost: float | None = None
    for asset in ASSETS:
        filters = dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=[partition])
        for record in instance.fetch_materializations(filters, limit=500).records:
            materialization = record.asset_materialization
            metadata: Mapping[str, Any] = materialization.metadata if materialization else {}
            calls += _count(metadata, _CALLS)
            tokens_in += _count(metadata, _TOKENS_IN)
            tokens_out += _count(metadata, _TOKENS_OUT)
            if (paid := _number(metadata, _COST)) is not None:
                cost = (cost or 0.0) + paid
    return Spend(calls, tokens_in, tokens_out, cost)


def _number(metadata: Mapping[str, Any], name: str) -> float | None:
    """A number of a step. Anything else was reported by somebody else than a step, and counts for nothing."""
    value: object = metadata[name].value if name in metadata else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return value


def _count(metadata: Mapping[str, Any], name: str) -> int:
    return int(_number(metadata, name) or 0)
