"""Journeys share one running installation; each test has its own repository and ticket in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.installation import Installation, installation
from tests.support.model import ModelServer, model_server
from tests.support.team import respond


@pytest.fixture(scope="session")
def model() -> Iterator[ModelServer]:
    """A team of roles that obeys the tickets."""
    with model_server(respond) as server:
        yield server


@pytest.fixture(scope="session")
def house(model: ModelServer) -> Iterator[Installation]:
    """Dagster's webserver, daemon and code server on a fresh home."""
    with installation(model.url, {"ATELIER_AGENT_TIMEOUT": "15"}) as running:
        yield running
