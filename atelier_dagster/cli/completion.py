"""What the shell offers while a person types. Reads only the local tracker's directory, and never fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from atelier_dagster.factory.errors import AtelierError

_MOST = 200


def tickets(incomplete: str) -> list[str]:
    """Tickets of the local tracker that begin so."""
    found = (f"{repo}#{number}" for repo, place in _repositories() for number in _numbers(place))
    return _first(found, incomplete)


def repositories(incomplete: str) -> list[str]:
    """Repositories of the local tracker that begin so."""
    return _first((repo for repo, _ in _repositories()), incomplete)


def demo_tickets(incomplete: str) -> list[str]:
    """Names of the demo's journeys that begin so."""
    from atelier_dagster.demo import catalogue

    return _first(iter(["all", *catalogue()]), incomplete)


def _first(found: Iterator[str], incomplete: str) -> list[str]:
    matching = (text for text in found if text.startswith(incomplete))
    return [text for _, text in zip(range(_MOST), matching, strict=False)]


def _repositories() -> Iterator[tuple[str, Path]]:
    from atelier_dagster.settings import load_settings

    try:
        root = load_settings().home / "forge"
    except AtelierError:
        return
    for bare in sorted(root.glob("*/*/repo.git")) + sorted(root.glob("*/*/*/repo.git")):
        yield "local/" + "/".join(bare.parent.relative_to(root).parts), bare.parent


def _numbers(place: Path) -> list[int]:
    return sorted(int(path.stem) for path in (place / "tickets").glob("*.md") if path.stem.isdigit())
