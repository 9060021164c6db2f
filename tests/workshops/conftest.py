"""Backends under test. A further backend joins the conformance suite by one line in `BACKENDS`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from atelier_dagster.ports import RepoSource, Workshops
from atelier_dagster.workshops import LocalWorkshops
from tests.support.workshops import bare_repository, ready, spec_for

BACKENDS: dict[str, Callable[[Path], Workshops]] = {
    "local": LocalWorkshops,
}


async def delete_all(workshops: Workshops) -> None:
    """Leave nothing behind."""
    for status in await workshops.list():
        await workshops.delete(status.name)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> RepoSource:
    """A repository with one commit on `trunk`."""
    return bare_repository(tmp_path_factory.mktemp("source"), {"README.md": "hello\n", "sub dir/ü.txt": "x\n"})


@pytest.fixture(params=list(BACKENDS))
def workshops(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Workshops]:
    """An empty backend, for tests of life cycles."""
    backend = BACKENDS[request.param](tmp_path / "workshops")
    yield backend
    asyncio.run(delete_all(backend))


@pytest.fixture(scope="session", params=list(BACKENDS))
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, source: RepoSource
) -> Generator[tuple[Workshops, str]]:
    """A running workshop for tests that leave it as it is."""
    backend = BACKENDS[request.param](tmp_path_factory.mktemp("shared"))
    yield backend, asyncio.run(ready(backend, spec_for(source, "pm-shared")))
    asyncio.run(delete_all(backend))
