"""How the demo looks while it goes on: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from atelier_dagster.cli import output
from atelier_dagster.cli.demo.journey import Journey, Made, RunSeen

_SHORT = {
    "architecture_review": "architect", "greenfield_spec": "spec", "plan_document": "document",
    "approved_plan": "plan ok", "test_report": "tests", "tested_diff": "tested", "code_review": "code",
    "security_review": "security", "ops_review": "ops", "review_gate": "reviewed", "pull_request": "pull request",
    "qa_report": "QA",
}  # fmt: skip
_QUIET = {"not triggered", "open"}


class Display:
    """Shows progress. A context manager; `pause` gives the terminal back while a person is asked."""

    def __init__(self, console: Console, journeys: Sequence[Journey]) -> None:
        self._console = console
        self._journeys = journeys
        self._began = time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    def news(self, journey: Journey, what: Made | RunSeen) -> None:
        """One thing happened."""
        line = news_line(what)
        if line:
            self.line(f"{journey.name}: {line}")

    def line(self, text: str) -> None:
        """One remark, above the live table if there is one."""
        self._console.print(escape(f"[{self.seconds:6.1f} s] {text}"), soft_wrap=True)

    def refresh(self) -> None:
        """Draw the present state."""
        if self._live:
            self._live.update(progress_table(self._journeys))

    def pause(self) -> None:
        """Before a question."""
        if self._live:
            self._live.stop()

    def resume(self) -> None:
        """After it."""
        if self._live:
            self._live.start()


def news_line(what: Made | RunSeen) -> str:
    """A line about one thing that happened; "" for what nobody wants to read."""
    if isinstance(what, RunSeen):
        words = {"active": "starts", "failure": "FAILED", "cancelled": "was cancelled"}
        return f"run of {what.job} {words[what.status]} ({what.run_id[:8]})" if what.status in words else ""
    again = f" (attempt {what.attempt}" + (f", round {what.round}" if what.round > 1 else "") + ")"
    parts = [what.asset + (again if what.attempt > 1 or what.round > 1 else ""), what.verdict, what.remark]
    return ": ".join(part for part in parts if part)


def progress_table(journeys: Sequence[Journey]) -> RenderableType:
    """One row a journey: what is done, what it does now."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for journey in journeys:
        steps = " ".join(_mark(made) for made in journey.latest().values())
        table.add_row(escape(journey.name), escape(journey.in_words()), steps)
    return table


def _mark(made: Made) -> str:
    name = _SHORT.get(made.asset, made.asset)
    attempt = f"x{made.attempt}" if made.attempt > 1 else ""
    if not made.verdict or made.verdict in _QUIET:
        return f"[dim]{escape(name)}{attempt}[/]"
    style = output.STYLES.get(made.verdict, "")
    return f"[{style}]{escape(name)}{attempt}[/]" if style else escape(name) + attempt
