"""Which tickets began to wait for a human since a cursor. Cost is in proportion to what was materialized since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from atelier_dagster.orchestration import tags

_PER_TICK = 500


@dataclass(frozen=True)
class News:
    """One materialization of one ticket."""

    asset: str
    partition: str
    sha256: str


def materialized_since(instance: dg.DagsterInstance, asset: str, cursors: dict[str, Any]) -> Iterator[News]:
    """New materializations of `asset`, oldest first; moves `cursors[asset]` on."""
    filters = dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), after_storage_id=cursors.get(asset))
    for record in instance.fetch_materializations(filters, limit=_PER_TICK, ascending=True).records:
        cursors[asset] = record.storage_id
        materialization = record.asset_materialization
        if materialization is None or materialization.partition is None:
            continue
        version = (materialization.tags or {}).get(tags.DATA_VERSION, "")
        yield News(asset, materialization.partition, version)
