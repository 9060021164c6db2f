"""Starts one of Dagster's programs so that it never outlives the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from importlib.metadata import entry_points

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process gets when its parent ends."""


def main(arguments: list[str]) -> None:
    """Arguments are the parent's process id, `now` or `wait`, and the program's command line.

    With `wait` the program is imported, which takes seconds, and runs when a line comes on stdin.
    """
    parent, gate, program, *rest = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before the line above
        raise SystemExit(1)
    (script,) = entry_points(group="console_scripts", name=program)
    run = script.load()
    if gate == "wait" and not sys.stdin.readline():
        raise SystemExit(1)  # nobody is left to say go
    sys.argv = [program, *rest]
    run()


if __name__ == "__main__":
    main(sys.argv[1:])
