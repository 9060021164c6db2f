"""The command line `atelier`. Nothing imports it; a command imports what it needs when it runs."""

from __future__ import annotations


def main() -> None:
    """Entry point of the program `atelier`."""
    from atelier_dagster.cli.app import app

    app(prog_name="atelier")
