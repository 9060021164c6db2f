"""`atelier dev`: Dagster with its UI and daemon on this checkout, until somebody stops it."""

from __future__ import annotations

import asyncio
import signal
import time
from types import FrameType

from atelier_dagster.cli import output
from atelier_dagster.cli.home import prepare_home
from atelier_dagster.cli.stack import Stack, StackOptions, check_port_free, free_port
from atelier_dagster.settings import load_settings

_LOOK_SECONDS = 0.5


def run(port: int) -> None:
    """The command. Returns when Ctrl-C or SIGTERM has stopped everything."""
    settings = load_settings()
    chosen = port or free_port()
    check_port_free(chosen)
    home = settings.home.resolve()
    output.say(f"Atelier keeps everything in {home}")
    asyncio.run(prepare_home(home))
    with Stack(StackOptions(home=home, port=chosen, reload=True)) as stack, _Stop() as stop:
        stack.start(output.say)
        output.stdout().print(f"Dagster is ready: {stack.url}", markup=False)
        output.say(
            "Next: atelier init PATH-OR-URL, then atelier ticket new local/OWNER/NAME --title '...'\n"
            f"Logs: {stack.logs}. Stop with Ctrl-C."
        )
        while not stop.asked:
            stack.check()
            time.sleep(_LOOK_SECONDS)
        output.say("stopping")


class _Stop:
    """Notices SIGINT and SIGTERM; the handlers from before are back afterwards."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> _Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:  # a second time: whatever is under way is left
            raise KeyboardInterrupt
        self.asked = True
