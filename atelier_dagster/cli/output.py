"""What commands print: results on stdout, remarks on stderr, JSON alone where it is asked for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_UNBOUNDED = 300

STYLES: Mapping[str, str] = {
    "approve": "green", "passed": "green", "pass": "green", "merged": "green", "ok": "green", "success": "green",
    "request_changes": "yellow", "waiting": "yellow", "running": "cyan", "missing": "yellow",
    "failed": "red", "fail": "red", "failure": "red", "rejected": "red", "cancelled": "magenta",
}  # fmt: skip


def stdout() -> Console:
    """The console for results."""
    return Console(highlight=False, width=_width(sys.stdout))


def stderr() -> Console:
    """The console for remarks and progress."""
    return Console(stderr=True, highlight=False, width=_width(sys.stderr))


def _width(stream: TextIO) -> int | None:
    """Where there is no terminal to fit into, tables are as wide as they need to be."""
    return None if stream.isatty() or "COLUMNS" in os.environ else _UNBOUNDED


def print_json(value: Any) -> None:
    """The only thing on stdout of a command with `--json`."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))  # noqa: T201


def say(text: str) -> None:
    """One remark, taken literally: nothing in it is markup."""
    stderr().print(escape(text))


def styled(word: str) -> str:
    """A word as markup in the colour that goes with it."""
    style = STYLES.get(word)
    text = escape(word)
    return f"[{style}]{text}[/]" if style else text


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """A plain table. Cells are markup: escape what comes from outside."""
    made = Table(*columns, title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        made.add_row(*row)
    return made
