"""Stores and artifacts that the tests of this room share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atelier_dagster.artifacts import ArtifactStore, DirectoryStore
from atelier_dagster.factory.lineage import Artifact
from atelier_dagster.factory.ticket import Analysis

TICKET = "local~demo~shop~1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def directory(root: Path) -> DirectoryStore:
    return DirectoryStore(root)


@pytest.fixture
def artifacts(directory: DirectoryStore) -> ArtifactStore:
    return ArtifactStore(directory)


@pytest.fixture
def analysis() -> Artifact[Any]:
    value = Analysis(job_story="When a link is long, I want a short one 🔗", criteria=("it redirects", "404 else"))
    return Artifact[Analysis](asset="analysis", ticket=TICKET, cycle=1, inputs={"ticket": "a" * 64}, value=value)
