"""Dagster's own directory inside Atelier's home: its configuration and its databases. Not here: the processes."""

from __future__ import annotations

import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any, cast

import yaml

from atelier_dagster.factory.errors import InvalidInput, NotFound, Unavailable
from atelier_dagster.files import file_lock, write_atomic
from atelier_dagster.settings import Settings

_RELATIVE_HOME = ".atelier"
_HEADER = b"# Written by `atelier dev` and `atelier demo` from the installation's dagster.yaml; edit that one.\n"
_VERSION = ".dagster-version"
_ADDRESS = "webserver.json"


def dagster_directory(home: Path) -> Path:
    """`DAGSTER_HOME` of an Atelier home."""
    return home.resolve() / "dagster"


def installation() -> Path:
    """The directory that holds `dagster.yaml` and the top-level packages: the checkout."""
    return Path(__file__).resolve().parents[2]


async def prepare_home(home: Path) -> Path:
    """Make `DAGSTER_HOME`, with configuration and databases that several processes can open at once; returns it.

    Databases are made here, in one process: several that open an empty home at once can each try to create the same
    table. An older Dagster's databases are migrated. Raises `Unavailable` when the directory cannot be used.
    """
    directory = dagster_directory(home)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        async with file_lock(directory / ".lock", timeout=120.0):
            _write_if_changed(directory / "dagster.yaml", render_config(home))
            _open_databases(directory)
    except OSError as error:
        raise Unavailable(
            f"{directory} cannot be used: {error.strerror}", fix="set ATELIER_HOME to a directory that can be written"
        ) from None
    return directory


def render_config(home: Path, source: Path | None = None) -> bytes:
    """The installation's `dagster.yaml` with the paths below `.atelier` made absolute for this home."""
    path = source or installation() / "dagster.yaml"
    try:
        loaded: object = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        raise NotFound(f"{path} is missing", fix="run from a checkout of Atelier, installed with `uv sync`") from None
    except yaml.YAMLError as error:
        raise InvalidInput(f"{path} is not YAML: {error}", fix="restore it from the repository") from None
    return _HEADER + yaml.safe_dump(_absolute(loaded, home.resolve()), sort_keys=False).encode()


def _absolute(value: object, home: Path) -> object:
    if isinstance(value, dict):
        return {key: _absolute(item, home) for key, item in cast("dict[object, object]", value).items()}
    if isinstance(value, list):
        return [_absolute(item, home) for item in cast("list[object]", value)]
    if isinstance(value, str) and Path(value).parts[:1] == (_RELATIVE_HOME,):
        return str(home.joinpath(*Path(value).parts[1:]))
    return value


def _write_if_changed(path: Path, data: bytes) -> None:
    if not path.exists() or path.read_bytes() != data:
        write_atomic(path, data)


def _open_databases(directory: Path) -> None:
    """Create or migrate the databases unless this Dagster has done so before."""
    version = importlib.metadata.version("dagster")
    marker = directory / _VERSION
    known = marker.read_text("ascii").strip() if marker.exists() else ""
    if known == version:
        return
    import dagster as dg

    try:
        with dg.DagsterInstance.from_config(str(directory)) as instance:
            if known:
                instance.upgrade()
    except dg.DagsterError as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(
            f"dagster.yaml does not work: {reason}", fix="mend the installation's dagster.yaml"
        ) from None
    write_atomic(marker, version.encode())


# ------------------------------------------------------------------------------------------------ the webserver's URL


def note_address(home: Path, url: str) -> None:
    """Leave word of where the webserver of this home listens, for the other commands."""
    write_atomic(dagster_directory(home) / _ADDRESS, json.dumps({"url": url, "pid": os.getpid()}).encode())


def forget_address(home: Path) -> None:
    """Take the word back."""
    (dagster_directory(home) / _ADDRESS).unlink(missing_ok=True)


def webserver_url(settings: Settings) -> str:
    """Where to find the webserver: as configured, else where `atelier dev` or `atelier demo` of this home said."""
    if "dagster_url" in settings.model_fields_set:
        return settings.dagster_url
    try:
        found = cast("dict[str, Any]", json.loads((dagster_directory(settings.home) / _ADDRESS).read_bytes()))
        return str(found["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return settings.dagster_url
