"""Log of what was asked of the egress proxy: JSON lines, bounded. Not here: decisions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

MAX_BYTES = 4 * 1024 * 1024


class DecisionLog:
    """Appends one line a decision; at its bound the file becomes `<name>.1`, and the one before that is dropped."""

    def __init__(self, path: Path, limit: int = MAX_BYTES) -> None:
        self._path, self._limit = path, limit
        self._size = path.stat().st_size if path.exists() else 0

    def add(self, **values: object) -> None:
        """Append a decision, with the time. Raises `OSError`."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **values}) + "\n"
        if self._size + len(line) > self._limit:
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._size = 0
        with self._path.open("a") as file:
            file.write(line)
        self._size += len(line)


def read_log(path: Path) -> list[dict[str, object]]:
    """Decisions of a log, oldest first."""
    found: list[dict[str, object]] = []
    for part in (path.with_name(path.name + ".1"), path):
        if part.exists():
            found += [json.loads(line) for line in part.read_text().splitlines()]
    return found
