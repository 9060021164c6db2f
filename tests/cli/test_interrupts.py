"""Whatever ends a command, it ends once and in order."""

from __future__ import annotations

import os
import signal

import pytest

from atelier_dagster.cli.interrupts import SIGNALS, one_interrupt


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_interrupts_and_later_ones_do_not(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with one_interrupt() as interrupt:
        assert interrupt.exit_code == 0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        for later in SIGNALS:
            os.kill(os.getpid(), later)
        assert interrupt.exit_code == 128 + number
    assert [signal.getsignal(each) for each in SIGNALS] == before
