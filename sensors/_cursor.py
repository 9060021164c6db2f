"""Cursors as JSON, forgiving about what an older version left."""

from __future__ import annotations

import json
from typing import Any, cast


def load(cursor: str | None) -> dict[str, Any]:
    """The cursor's fields; none when it cannot be read, so that a sensor looks at everything again."""
    try:
        value = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def dump(fields: dict[str, Any]) -> str:
    """The text of a cursor."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))
