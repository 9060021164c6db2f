"""Names of objects. Belongs here: which keys are valid and how they are built. Not here: what is stored under them."""

from __future__ import annotations

import re

from atelier_dagster.factory.errors import InvalidInput

_SEGMENT = re.compile(r"[A-Za-z0-9._~-]{1,255}")
_LONGEST_KEY = 1024
"""Bytes; S3's own limit."""


def check_key(key: str) -> tuple[str, ...]:
    """Segments of a valid key. Raises `InvalidInput` for anything that could leave its folder or clash on a disk."""
    segments = tuple(key.split("/"))
    wrong = [part for part in segments if not _SEGMENT.fullmatch(part) or part in {".", ".."}]
    if wrong or len(key) > _LONGEST_KEY:
        raise InvalidInput(
            f"{key[:200]!r} is not an object key",
            fix="use segments of letters, digits, '.', '_', '~' and '-' with '/' between them, 1024 characters at most",
        )
    return segments


def check_prefix(prefix: str) -> tuple[str, ...]:
    """Segments of a folder of keys: "" is everything, a trailing slash changes nothing."""
    trimmed = prefix.removesuffix("/")
    return check_key(trimmed) if trimmed else ()


def join_key(*segments: str) -> str:
    """A key made of whole segments: one that holds a slash is refused rather than split."""
    for segment in segments:
        if len(check_key(segment)) != 1:
            raise InvalidInput(f"{segment[:200]!r} is not one segment of an object key", fix="leave '/' out of names")
    key = "/".join(segments)
    check_key(key)
    return key
