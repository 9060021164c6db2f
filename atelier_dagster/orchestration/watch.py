"""What was materialized since a cursor, over several assets. Cost is in proportion to what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from atelier_dagster.orchestration import tags

_PER_TICK = 500


@dataclass(frozen=True)
class News:
    """One materialization of one ticket."""

    asset: str
    partition: str
    sha256: str
    storage_id: int


def materialized_since(
    instance: dg.DagsterInstance, assets: Sequence[str], cursor: int, limit: int = _PER_TICK
) -> tuple[Sequence[News], int]:
    """New materializations of `assets` in the order in which they were stored, and the next cursor.

    At most `limit` of each asset; where one has more, nothing newer than its last one is taken from the others either,
    so that the order stays true from call to call.
    """
    records: list[dg.EventLogRecord] = []
    until: list[int] = []
    for asset in assets:
        filters = dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), after_storage_id=cursor)
        page = instance.fetch_materializations(filters, limit=limit, ascending=True).records
        records += page
        until += [page[-1].storage_id] if len(page) == limit else []
    records = sorted((r for r in records if r.storage_id <= min(until, default=r.storage_id)), key=_storage_id)
    news = [found for record in records if (found := _news(record))]
    return news, records[-1].storage_id if records else cursor


def _storage_id(record: dg.EventLogRecord) -> int:
    return record.storage_id


def _news(record: dg.EventLogRecord) -> News | None:
    materialization = record.asset_materialization
    if materialization is None or materialization.partition is None:
        return None
    version = (materialization.tags or {}).get(tags.DATA_VERSION, "")
    return News(materialization.asset_key.path[-1], materialization.partition, version, record.storage_id)
