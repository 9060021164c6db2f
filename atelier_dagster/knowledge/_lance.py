"""Past resolutions in LanceDB. Belongs here: tables, filters, bounds. Not here: what is worth remembering."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

from atelier_dagster.factory.errors import TimedOut, Unavailable
from atelier_dagster.factory.ticket import RepoRef, Resolution, TicketKey
from atelier_dagster.files import file_lock
from atelier_dagster.knowledge._embedding import KIND, embed_all_locally
from atelier_dagster.ports import Check

Embed = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]

LONGEST_TITLE = 300
LONGEST_SUMMARY = 8_000
LONGEST_QUERY = 20_000
"""Characters; what is longer is cut."""
_MOST_RESULTS = 20
_TIDY_EVERY = 50
_KEEP_VERSIONS = timedelta(hours=1)


class LanceKnowledge:
    """A `KnowledgeIndex` in a LanceDB directory, or at an object store's URI.

    `embed` is a model's embedding function (`Gateway.embed`) and `embedding` its name; without one, a local
    embedding by words is used, which needs no network. Vectors of different embeddings cannot be compared, so each
    embedding and dimension has a table of its own. LanceDB takes seconds to import, so nothing is imported before
    something was indexed. `timeout` bounds each use of the database, in seconds.
    """

    def __init__(
        self,
        uri: str | Path,
        embed: Embed | None = None,
        embedding: str = "",
        *,
        same_repository_only: bool = False,
        storage_options: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._uri = str(uri)
        self._embed: Embed = embed or embed_all_locally
        kind = f"model:{embedding}" if embed else KIND
        self._kind = kind
        self._stem = f"resolutions-{hashlib.sha256(kind.encode()).hexdigest()[:12]}"
        self._same_repository_only = same_repository_only
        self._storage_options = dict(storage_options or {})
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"LanceKnowledge({self._uri!r}, embedding={self._kind!r})"

    async def add(self, key: TicketKey, cycle: int, title: str, summary: str) -> None:
        """See `KnowledgeIndex`. Title and summary are cut to 300 and 8,000 characters."""
        row = {
            "id": f"{key.partition}@{cycle}",
            "ticket": str(key),
            "tenant": _tenant(key.repo),
            "repository": str(key.repo),
            "title": title[:LONGEST_TITLE],
            "summary": summary[:LONGEST_SUMMARY],
        }
        (vector,) = await self._embed([f"{row['title']}\n\n{row['summary']}"])
        async with self._writing(), self._database() as database:
            table = await self._open(database, len(vector), make=True)
            writer = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            await writer.execute([{**row, "vector": list(vector)}])
            if await table.version() % _TIDY_EVERY == 0:
                await table.optimize(cleanup_older_than=_KEEP_VERSIONS)

    async def similar(self, repo: RepoRef, text: str, limit: int = 3) -> Sequence[Resolution]:
        """See `KnowledgeIndex`. At most 20; `score` is the cosine similarity."""
        if not text.strip() or not self._may_hold_something():
            return []
        (vector,) = await self._embed([text[:LONGEST_QUERY]])
        async with self._database() as database:
            table = await self._open(database, len(vector))
            if table is None:
                return []
            query = table.query().nearest_to(list(vector)).distance_type("cosine").where(self._visible_from(repo))
            rows: list[dict[str, Any]] = await query.limit(max(1, min(limit, _MOST_RESULTS))).to_list()
        return [_resolution(row) for row in rows]

    async def delete(self, key: TicketKey) -> None:
        """Forget a ticket, all its cycles, in every table. Forgetting an unknown one is fine."""
        if not self._may_hold_something(any_embedding=True):
            return
        async with self._writing(), self._database() as database:
            for name in await _names(database):
                if name.startswith("resolutions-"):
                    table = await database.open_table(name)
                    await table.delete(_equals("ticket", str(key)))

    async def preflight(self) -> Sequence[Check]:
        """Whether the directory could be written; at a URI, whether the database can be listed."""
        name = "knowledge index"
        if self._directory is None:
            try:
                async with self._database() as database:
                    await _names(database)
            except Unavailable as error:
                return [Check(name, ok=False, detail=error.message, fix=error.fix, required=False)]
            return [Check(name, ok=True, detail=self._uri, required=False)]
        nearest = next(path for path in [self._directory, *self._directory.absolute().parents] if path.exists())
        good = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
        fix = "" if good else f"make {self._directory} a directory that this user can write"
        return [Check(name, ok=good, detail=f"{self._directory} ({self._kind})", fix=fix, required=False)]

    # ------------------------------------------------------------------------------------------------- database

    @property
    def _directory(self) -> Path | None:
        return None if "://" in self._uri else Path(self._uri)

    def _may_hold_something(self, *, any_embedding: bool = False) -> bool:
        """Whether it is worth to load LanceDB at all; only a directory can tell."""
        if self._directory is None:
            return True
        return any(self._directory.glob("resolutions-*.lance" if any_embedding else f"{self._stem}-*.lance"))

    def _writing(self) -> AbstractAsyncContextManager[None]:
        """One writer at a time: of two that create a table at once, LanceDB lets the second empty the first's.

        An object store has no lock; there the first two additions must not meet.
        """
        if self._directory is None:
            return nullcontext()
        return file_lock(self._directory / "writing.lock", self._timeout)

    @asynccontextmanager
    async def _database(self) -> AsyncGenerator[Any]:
        """A connection for one use: steps run on event loops of their own. Errors of LanceDB become `Unavailable`."""
        try:
            async with asyncio.timeout(self._timeout):
                # the import blocks for seconds, which must not stop everything else on this loop
                lancedb = await asyncio.to_thread(_lancedb)
                database = await lancedb.connect_async(self._uri, storage_options=self._storage_options or None)
                try:
                    yield database
                finally:
                    database.close()
        except TimeoutError as error:
            raise TimedOut(f"the knowledge index did not answer within {self._timeout:g} s") from error
        except (OSError, RuntimeError, ValueError) as error:
            raise Unavailable(
                f"the knowledge index at {self._uri} failed: {str(error)[:500]}",
                fix="check its disk or bucket; it can be removed, and fills again with the next merges",
            ) from error

    async def _open(self, database: Any, dimensions: int, *, make: bool = False) -> Any:
        name = f"{self._stem}-{dimensions}"
        if name in await _names(database):
            return await database.open_table(name)
        if not make:
            return None
        return await database.create_table(name, schema=_schema(self._kind, dimensions), exist_ok=True)

    def _visible_from(self, repo: RepoRef) -> Any:
        if self._same_repository_only:
            return _equals("repository", str(repo))
        return _equals("tenant", _tenant(repo))


def _tenant(repo: RepoRef) -> str:
    return f"{repo.tracker}/{repo.owner}"


def _equals(column: str, value: str) -> Any:
    """A filter as an expression tree: the value is never part of a query's text."""
    from lancedb.expr import col, lit

    return col(column) == lit(value)


def _lancedb() -> Any:
    import lancedb

    return lancedb


async def _names(database: Any) -> list[str]:
    names: list[str] = []
    token: str | None = None
    while True:
        page = await database.list_tables(page_token=token)
        names += page.tables
        token = page.page_token
        if not token:
            return names


def _schema(kind: str, dimensions: int) -> Any:
    import pyarrow

    arrow: Any = pyarrow
    texts = [arrow.field(name, arrow.string()) for name in ("id", "ticket", "tenant", "repository", "title", "summary")]
    vector = arrow.field("vector", arrow.list_(arrow.float32(), dimensions))
    return arrow.schema([*texts, vector], metadata={"embedding": kind})


def _resolution(row: Mapping[str, Any]) -> Resolution:
    score = round(1.0 - float(row["_distance"]), 6)
    return Resolution(ticket=row["ticket"], title=row["title"], summary=row["summary"], score=score)
