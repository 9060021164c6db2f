"""Real sockets on 127.0.0.1."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest

from tests.support.sockets import Sockets


@pytest.fixture
async def sockets() -> AsyncGenerator[Sockets]:
    """Servers and connections that end with the test."""
    async with AsyncExitStack() as stack:
        yield Sockets(stack)
