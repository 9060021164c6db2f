"""Markdown with front matter, as people and programs write it. Not here: which files there are, or what they mean."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import yaml

from atelier_dagster.factory.errors import AtelierError, InvalidInput
from atelier_dagster.files import read_regular

MAX_BYTES = 1_000_000
_MAX_HEADER = 65_536
_MAX_BRACKETS = 200
"""Nobody nests a ticket's fields deeply; a parser can be made to work long on such text."""
_FENCE = re.compile(r"^(---|\.\.\.)[ \t]*$", re.MULTILINE)
_FIELD = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)[ \t]*:[ \t]*(.*)")
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""The one written in C where PyYAML was built with it: tens of times faster."""
_EPOCH = datetime.fromtimestamp(0, UTC)


class DocumentUnreadable(AtelierError):
    """A file of the local tracker or forge cannot be understood. The message names it."""

    code = "TICKET_UNREADABLE"


@dataclass(frozen=True)
class Document:
    """A file's fields and text, with who owns the file and when it changed."""

    fields: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict[str, str | tuple[str, ...]])
    body: str = ""
    owner_uid: int = -1
    modified: datetime = _EPOCH
    raw: bytes = b""

    def text(self, name: str, default: str = "") -> str:
        """A field as one line of text."""
        value = self.fields.get(name, default)
        return value.strip() if isinstance(value, str) else ", ".join(value)

    def words(self, name: str) -> tuple[str, ...]:
        """A field as a list: of a YAML list, or of text with commas."""
        value = self.fields.get(name, "")
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))

    def time(self, name: str) -> datetime:
        """A field as a time in UTC; what is no time counts as the file's own."""
        try:
            value = datetime.fromisoformat(self.text(name))
        except ValueError:
            return self.modified
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)

    @property
    def owner(self) -> str:
        """Name of the operating-system user who owns the file."""
        return user_name(self.owner_uid)


def user_name(uid: int) -> str:
    """Name of an operating-system user, or `uid-<n>` for one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def current_user() -> str:
    """The operating-system user of this process."""
    return user_name(os.getuid())


def read_document(path: Path) -> Document:
    """Read and parse a file. Raises `NotFound`, `DocumentUnreadable`."""
    try:
        raw, status = read_regular(path, MAX_BYTES)
        text = raw.decode("utf-8-sig")
    except InvalidInput as error:
        raise DocumentUnreadable(error.message, fix=error.fix) from error
    except UnicodeDecodeError:
        raise DocumentUnreadable(f"{path} is not UTF-8 text", fix="save it as UTF-8") from None
    try:
        fields, body = parse(text)
    except ValueError as error:
        raise DocumentUnreadable(f"{path}: {error}", fix="correct the lines between the two '---'") from None
    modified = datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC)
    return Document(fields, body, status.st_uid, modified, raw)


def parse(text: str) -> tuple[dict[str, str | tuple[str, ...]], str]:
    """Fields and body. A text without front matter has no fields. Raises `ValueError`."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    if not re.match(r"---[ \t]*\n", text):
        return {}, text
    start = text.index("\n") + 1
    end = _FENCE.search(text, start)
    if end is None:
        raise ValueError("the front matter has no closing '---'")
    header = text[start : end.start()]
    if len(header) > _MAX_HEADER:
        raise ValueError("the front matter is too long")
    if header.count("[") + header.count("{") > _MAX_BRACKETS:
        raise ValueError("the front matter has too many brackets")
    return _fields(header), text[end.end() :].strip("\n")


def render(fields: Mapping[str, str | Sequence[str] | bool], body: str) -> bytes:
    """The inverse of `parse`; fields that are empty are left out."""
    kept = {name: value if isinstance(value, str | bool) else list(value) for name, value in fields.items() if value}
    header = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=1000)
    text = body.replace("\r\n", "\n").strip("\n")
    return f"---\n{header}---\n\n{text}\n".encode("utf-8", "backslashreplace")


def _fields(header: str) -> dict[str, str | tuple[str, ...]]:
    try:
        # BaseLoader makes strings only: `yes`, `1.0` and dates stay what the person wrote.
        loaded: object = yaml.load(header, Loader=_LOADER)  # noqa: S506
    except (yaml.YAMLError, RecursionError) as error:
        return _lines(header, error)
    if loaded is None or loaded == "":
        return {}
    if not isinstance(loaded, dict):
        raise ValueError("the front matter is not a list of 'name: value'")  # noqa: TRY004
    found: dict[str, str | tuple[str, ...]] = {}
    for name, value in cast("dict[object, object]", loaded).items():
        found[str(name).strip().lower()] = _value(str(name), value)
    return found


def _value(name: str, value: object) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        items = cast("list[object]", value)
        if all(isinstance(item, str) for item in items):
            return tuple(cast("list[str]", items))
    raise ValueError(f"field {name!r} is neither text nor a list of texts")


def _lines(header: str, cause: Exception) -> dict[str, str | tuple[str, ...]]:
    """`title: Fix: it` is no YAML, but plain enough: each line is a name and the rest of the line."""
    found: dict[str, str | tuple[str, ...]] = {}
    for line in header.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _FIELD.fullmatch(line.rstrip())
        if match is None:
            raise ValueError(f"the front matter is not YAML ({_first_line(cause)})") from cause
        found[match[1].lower()] = _plain(match[2])
    return found


def _plain(value: str) -> str | tuple[str, ...]:
    if value.startswith("[") and value.endswith("]"):
        return tuple(part.strip().strip("'\"") for part in value[1:-1].split(","))
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def _first_line(error: Exception) -> str:
    problem = getattr(error, "problem", None) or str(error) or type(error).__name__
    return str(problem).splitlines()[0]
