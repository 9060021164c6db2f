"""The scripted wire that the tests of this room ask."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.support.openai_wire import Wire, openai_wire


@pytest.fixture
async def wire() -> AsyncGenerator[Wire]:
    async with openai_wire() as scripted:
        yield scripted
