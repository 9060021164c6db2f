"""`atelier demo`: whole journeys on the embedded stack, watched on the terminal. The model and tickets are `demo`'s."""

from atelier_dagster.cli.demo.run import Wish, list_journeys, run

__all__ = ["Wish", "list_journeys", "run"]
