"""The chain of evidence as one HTML page and its objects. Belongs here: its looks. Not here: verification."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atelier_dagster.artifacts._keys import check_key
from atelier_dagster.artifacts._store import check_sha256
from atelier_dagster.artifacts.audit import Audit, object_key, show, verify
from atelier_dagster.factory.change import ObjectRef
from atelier_dagster.files import write_atomic
from atelier_dagster.ports import ObjectStore

_SUFFIXES = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "application/json": ".json",
    "text/plain": ".txt",
    "text/x-diff": ".txt",
    "text/markdown": ".txt",
}
"""Kinds that a browser only displays. Everything else gets `.bin`: what an agent wrote must not run when opened."""
_PICTURES = {"image/png", "image/jpeg"}
_LARGEST_PICTURE = 2_000_000
_LONGEST_VALUE = 200_000


async def export(store: ObjectStore, ticket: str, folder: Path) -> Path:
    """Verify a ticket, write its page and intact objects below `folder`, and give the page's path.

    The page needs nothing else and runs no script. Raises `Unavailable`, and `OSError` when `folder` cannot be written.
    """
    check_key(ticket)
    audit = await verify(store, ticket)
    damaged = {fault.key for fault in audit.broken}
    pictures: dict[str, str] = {}
    objects = folder / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    for ref in audit.objects:
        if object_key(ref) in damaged:
            continue
        data = await store.get(object_key(ref))
        write_atomic(objects / file_name(ref), data)
        if ref.media_type in _PICTURES and len(data) <= _LARGEST_PICTURE:
            pictures[ref.sha256] = f"data:{ref.media_type};base64,{base64.b64encode(data).decode()}"
    page = folder / f"{ticket}.html"
    write_atomic(page, render(audit, pictures).encode())
    return page


def file_name(ref: ObjectRef) -> str:
    """Name of an exported object: its hash, and a suffix that makes nothing executable."""
    return check_sha256(ref.sha256) + _SUFFIXES.get(ref.media_type, ".bin")


def render(audit: Audit, pictures: Mapping[str, str] | None = None) -> str:
    """The page. Everything in it is escaped; `pictures` are data URLs by the objects' hash."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("atelier_dagster.artifacts", "."), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["pretty"] = _pretty
    return environment.get_template("report.html.j2").render(
        audit=audit,
        lines=show(audit),
        damaged={fault.key for fault in audit.broken},
        pictures=pictures or {},
        file_name=file_name,
        object_key=object_key,
    )


def _pretty(value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[:_LONGEST_VALUE]}\n... cut; the artifact itself is whole"
