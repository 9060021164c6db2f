"""The demo's model servers, and their command line: `python -m atelier_dagster.demo.model --port 8123`."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Mapping
from typing import Any

from atelier_dagster.demo import malformed, roles
from atelier_dagster.demo.server import LABEL, ModelServer, plain_frames

__all__ = ["LABEL", "MalformedModel", "ScriptedModel", "main"]

Observer = Callable[[str, Mapping[str, Any]], None]


class ScriptedModel(ModelServer):
    """Plays every role from the messages alone: the same messages always get the same answer."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, observe: Observer | None = None) -> None:
        super().__init__(roles.answer, host=host, port=port, framing=plain_frames, observe=observe)


class MalformedModel(ModelServer):
    """The same script, but it answers as models do on a bad day: the journey's fallbacks must carry the ticket."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, observe: Observer | None = None) -> None:
        super().__init__(malformed.answer, host=host, port=port, framing=malformed.frames, observe=observe)


def main(arguments: list[str] | None = None) -> None:
    """Serve until interrupted; prints the base URL once it listens."""
    parser = argparse.ArgumentParser(
        prog="atelier_dagster.demo.model", description="A script that answers like a model."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--malformed", action="store_true", help="answer badly formed")
    options = parser.parse_args(arguments)
    kind = MalformedModel if options.malformed else ScriptedModel
    with kind(host=options.host, port=options.port) as server:
        print(server.url, flush=True)  # noqa: T201 - whoever started it reads the address here
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
