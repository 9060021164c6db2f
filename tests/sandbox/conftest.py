"""A running workshop to try to break out of, and a small one to try to exhaust."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from atelier_dagster.ports import RepoSource, Resources
from atelier_dagster.workshops import LocalWorkshops
from tests.support.workshops import bare_repository, ready, spec_for


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> RepoSource:
    """A repository with one commit."""
    return bare_repository(tmp_path_factory.mktemp("source"), {"README.md": "hello\n"})


@pytest.fixture(scope="session")
def prison(tmp_path_factory: pytest.TempPathFactory, source: RepoSource) -> Generator[tuple[LocalWorkshops, str, Path]]:
    """Backend, name and root of a workshop with usual bounds, and of a second one, `pm-other`."""
    root = tmp_path_factory.mktemp("prison")
    backend = LocalWorkshops(root)
    names = [asyncio.run(ready(backend, spec_for(source, name))) for name in ("pm-prison", "pm-other")]
    yield backend, names[0], root
    for name in names:
        asyncio.run(backend.delete(name))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory, source: RepoSource) -> Generator[tuple[LocalWorkshops, str]]:
    """A workshop that has little of everything."""
    backend = LocalWorkshops(tmp_path_factory.mktemp("small"))
    bounds = Resources(memory_mib=200, processes=40, disk_mib=50, cpu_seconds=3)
    name = asyncio.run(ready(backend, spec_for(source, resources=bounds)))
    yield backend, name
    asyncio.run(backend.delete(name))
