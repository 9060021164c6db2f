"""An installation for each test, without processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ticks import Ticks, ticks


@pytest.fixture
def house() -> Iterator[Ticks]:
    with ticks(approvers=("alice",), bot="atelier[bot]") as made:
        yield made
