"""Backends by name: adding one is its file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.ports import Workshops
from atelier_dagster.workshops.local import LocalWorkshops

BACKENDS: Mapping[str, Callable[..., Workshops]] = {
    "local": LocalWorkshops,
}


def create_backend(kind: str, *args: Any, **options: Any) -> Workshops:
    """The backend of that name, built with its constructor's arguments. Raises `InvalidInput`."""
    if kind not in BACKENDS:
        raise InvalidInput(f"no workshop backend {kind!r}", fix=f"choose one of: {', '.join(BACKENDS)}")
    return BACKENDS[kind](*args, **options)
