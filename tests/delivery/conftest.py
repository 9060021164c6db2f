"""A host repository with one commit on `trunk`, workshops without a sandbox, and an agent that runs a shell script."""

from __future__ import annotations

from pathlib import Path

import pytest

from atelier_dagster.artifacts import ArtifactStore, DirectoryStore
from atelier_dagster.delivery import HostRepository
from atelier_dagster.ports import GitRemote
from tests.support.delivery import ScriptedAgent, Setting
from tests.support.plain_workshops import PlainWorkshops
from tests.support.repositories import checkout


@pytest.fixture
async def setting(tmp_path: Path) -> Setting:
    work = checkout(tmp_path / "work", "trunk")
    base = work.commit("base", {"src/a": "1\n", "README": "x\n"})
    host = HostRepository(tmp_path / "host.git")
    await host.fetch(GitRemote(str(work.path)), ["trunk"])
    store = ArtifactStore(DirectoryStore(tmp_path / "store"))
    return Setting(host, work, PlainWorkshops(tmp_path / "workshops"), store, ScriptedAgent(), base)
