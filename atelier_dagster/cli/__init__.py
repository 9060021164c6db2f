"""The command line `atelier`. Nothing imports it; a command imports what it needs when it runs."""

from __future__ import annotations


def main() -> None:
    """Entry point of the program `atelier`."""
    from atelier_dagster.cli.app import app
    from atelier_dagster.cli.errors import end_unexpectedly

    try:
        app(prog_name="atelier")
    except Exception as error:  # noqa: BLE001 - the last place where a traceback can be kept from a user
        end_unexpectedly(error)
