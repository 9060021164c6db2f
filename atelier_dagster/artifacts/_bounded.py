"""Many requests to a store at a time, but not all. Not here: what is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")

_AT_A_TIME = 8


async def gather_bounded(call: Callable[[A], Awaitable[R]], arguments: Iterable[A]) -> list[R]:
    """Results in the arguments' order. The first failure cancels the rest and is raised as it is."""
    gate = asyncio.Semaphore(_AT_A_TIME)

    async def one(argument: A) -> R:
        async with gate:
            return await call(argument)

    tasks = [asyncio.ensure_future(one(argument)) for argument in arguments]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
