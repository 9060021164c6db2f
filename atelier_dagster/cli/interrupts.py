"""Ctrl-C, a closed terminal and a polite kill: what a command does about them. What it puts away is its own affair."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Whether one of them came."""

    def __init__(self) -> None:
        self.number = 0

    @property
    def exit_code(self) -> int:
        """As shells tell it: 128 and the signal's number; 0 when none came."""
        return 128 + self.number if self.number else 0


@contextmanager
def one_interrupt() -> Generator[Interrupt]:
    """The first signal raises `KeyboardInterrupt`. Later ones are ignored: nothing that is being put away is left
    half-way. Only for the main thread; the handlers from before are back afterwards.
    """
    interrupt = Interrupt()

    def handle(number: int, _frame: FrameType | None) -> None:
        if not interrupt.number:
            interrupt.number = number
            raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
