"""One line a kind of forge: how its tracker and forge are made. Not here: the kinds themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.factory.ticket import RepoRef
from atelier_dagster.forges.local import LocalForge, LocalTracker
from atelier_dagster.ports import Forge, Tracker


@dataclass(frozen=True)
class ForgeOptions:
    """What a kind of forge may be configured with; each takes what it needs."""

    kind: str
    name: str
    """The first part of its tickets' names."""
    bot: str
    """The account under which Atelier writes."""
    root: Path | None = None
    url: str = ""
    username: str = ""
    token: SecretStr | None = None
    repositories: tuple[RepoRef, ...] = ()


@dataclass(frozen=True)
class Backend:
    """Both sides of a connected forge."""

    tracker: Tracker
    forge: Forge


def _local(options: ForgeOptions) -> Backend:
    if options.root is None:
        raise InvalidInput("the local forge needs a directory", fix="configure its root")
    tracker = LocalTracker(options.root, bot=options.bot, tracker=options.name)
    return Backend(tracker, LocalForge(options.root, bot=options.bot, tracker=options.name))


_KINDS: Mapping[str, Callable[[ForgeOptions], Backend]] = {
    "local": _local,
}


def backend_kinds() -> tuple[str, ...]:
    """Every kind that can be configured."""
    return tuple(sorted(_KINDS))


def connect(options: ForgeOptions) -> Backend:
    """Tracker and forge of the configured kind. Nothing is contacted yet. Raises `InvalidInput`."""
    make = _KINDS.get(options.kind)
    if make is None:
        raise InvalidInput(f"there is no forge kind {options.kind!r}", fix=f"use one of: {', '.join(backend_kinds())}")
    return make(options)
