"""A local tracker and forge on an empty directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from atelier_dagster.factory.ticket import RepoRef
from atelier_dagster.forges import LocalForge, LocalTracker
from tests.support.repositories import Checkout, checkout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def repo() -> RepoRef:
    return RepoRef.parse("local/demo/shop")


@pytest.fixture
def forge(root: Path) -> LocalForge:
    return LocalForge(root)


@pytest.fixture
def tracker(root: Path) -> LocalTracker:
    return LocalTracker(root)


@pytest.fixture
def source(tmp_path: Path) -> Checkout:
    """A repository with a default branch that is not `main`, and a change on `feature`."""
    source = checkout(tmp_path / "source", "trunk")
    source.commit("base", {"README": "x\n"})
    source.branch("feature")
    source.commit("work", {"new": "y\n"})
    source.git("checkout", "-q", "trunk")
    return source
