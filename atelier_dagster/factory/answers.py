"""Reading what a model answered: JSON somewhere in prose, in bounded time. Not here: what an answer means."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

_LIMIT = 400_000
"""Characters of an answer that are looked at, from its end: what counts comes last."""
_WORK = 400_000_000
"""Bound of the work on one answer, in characters that the decoder and its errors (which count lines) pass over."""
_DEEP = 100_000
"""Charge for an attempt that ended in too deep a nesting."""
_OPENING = re.compile(r'\{\s*["}]')
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def last_object(text: str, keys: Sequence[str]) -> Mapping[str, Any] | None:
    """The last well-formed JSON object in `text` that has all `keys`, or None.

    Fences and prose around it do not matter, nor do braces inside strings. An object inside another one counts only
    where the outer one lacks the keys. Work is bounded whatever the text is.
    """
    found: Mapping[str, Any] | None = None
    for value in _objects(text[-_LIMIT:]):
        found = _inner(value, keys) or found
    return found


def texts(value: object, count: int, length: int) -> tuple[str, ...]:
    """At most `count` texts of at most `length` characters out of a string, a list of strings, or a list of objects."""
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    found = (clean(_text(item), length) for item in items[: count * 4])
    return tuple(text for text in found if text)[:count]


def clean(text: str, length: int) -> str:
    """Valid Unicode without control characters (tabs and line ends stay), stripped, at most `length` characters."""
    valid = text[: length * 2].encode("utf-8", "replace").decode()
    plain = _CONTROL.sub("", valid.replace("\r\n", "\n").replace("\r", "\n")).strip()
    return plain if len(plain) <= length else plain[: length - 1] + "…"


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Well-formed objects, left to right, none inside another."""
    work = 0
    opening = _OPENING.search(text)
    while opening and work < _WORK:
        end, cost, value = _decode(text, opening.start())
        work += cost
        if value is not None:
            yield value
        opening = _OPENING.search(text, end)


def _decode(text: str, position: int) -> tuple[int, int, Mapping[str, Any] | None]:
    """Where to go on after trying to read an object at `position`, what the attempt cost, and the object."""
    try:
        value, end = _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        return position + 1, error.pos + 5 * (error.pos - position), None
    except (ValueError, RecursionError):
        return position + 1, _DEEP, None
    return end, 5 * (end - position), cast("Mapping[str, Any]", value)


def _inner(value: Mapping[str, Any], keys: Sequence[str]) -> Mapping[str, Any] | None:
    """`value` itself if it has the keys, else the last such object inside it."""
    waiting: list[object] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            mapping = cast("dict[str, Any]", item)
            if all(key in mapping for key in keys):
                return mapping
            waiting.extend(mapping.values())
        elif isinstance(item, list):
            waiting.extend(cast("list[object]", item))
    return None


def _text(item: object) -> str:
    if isinstance(item, str):
        return item
    if not isinstance(item, dict):
        return ""
    fields = {str(key).lower(): value for key, value in cast("dict[object, object]", item).items()}
    place = _first(fields, "file", "path")
    line = _first(fields, "line")
    severity = _first(fields, "severity")
    body = _first(fields, "text", "comment", "message", "body", "description")
    head = f"{place}:{line}" if place and line else place
    parts = [head, f"[{severity}]" if severity else "", body]
    return " ".join(part for part in parts if part)


def _first(fields: Mapping[str, object], *names: str) -> str:
    for name in names:
        value = fields.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, int) and abs(value) < 10**12:
            return str(value)
    return ""
