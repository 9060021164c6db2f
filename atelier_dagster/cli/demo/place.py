"""Where a demo lives: a home of its own, fresh each time, and settings that take little more than the user's model."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from atelier_dagster.agents import find_opencode
from atelier_dagster.factory.errors import InvalidInput, Refused, Unavailable
from atelier_dagster.settings import Settings

_MARKER = ".atelier-demo"
_KEPT_PREFIXES = ("ATELIER_LLM_", "ATELIER_AGENT", "ATELIER_WORKSHOPS_", "ATELIER_EGRESS", "ATELIER_DEBUG")
_MISSING_DEVCONTAINER = ".devcontainer/does-not-exist/devcontainer.json"


class DemoSettings(Settings):
    """Settings that come from nowhere but the arguments: neither environment nor `atelier.toml` reaches a demo."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments only."""
        return (init_settings,)


@dataclass(frozen=True)
class Model:
    """The model that answers. `scripted`: it is none, but a script."""

    base_url: str
    name: str
    scripted: bool


@dataclass(frozen=True)
class Place:
    """A demo's settings for this process, and the same as environment for Dagster's."""

    settings: Settings
    environment: Mapping[str, str]


def own_model(user: Settings) -> Model | None:
    """The user's model, if both its address and its name are configured. Raises `InvalidInput` for half of it."""
    if bool(user.llm_base_url) != bool(user.llm_model):
        missing = "ATELIER_LLM_MODEL" if user.llm_base_url else "ATELIER_LLM_BASE_URL"
        raise InvalidInput(f"your model is configured only in part: {missing} is not set", fix=f"set {missing}")
    return Model(user.llm_base_url, user.llm_model, scripted=False) if user.llm_base_url else None


def make_place(user: Settings, home: Path, model: Model, *, broken_qa: bool = False) -> Place:
    """Embedded defaults in `home`, with the model, agent and bounds that the user has."""
    values: dict[str, Any] = {
        "home": home,
        "llm_base_url": model.base_url,
        "llm_model": model.name,
        "llm_timeout": user.llm_timeout,
        "agent": user.agent,
        "agent_command": user.agent_command,
        "agent_timeout": user.agent_timeout,
        "workshops_unsafe": user.workshops_unsafe,
        "workshops_memory_mib": user.workshops_memory_mib,
        "workshops_processes": user.workshops_processes,
        "workshops_disk_mib": user.workshops_disk_mib,
        "egress": user.egress,
        "qa_devcontainer": _MISSING_DEVCONTAINER if broken_qa else "",
    }
    binary = user.agent_binary or find_opencode(user.home.resolve() / "tools")
    if binary:
        values["agent_binary"] = binary.absolute()
    if not model.scripted:
        values |= {"llm_api_key": user.llm_api_key, "llm_role_models": user.llm_role_models}
        values["llm_embedding_model"] = user.llm_embedding_model
    return Place(DemoSettings(**values), _environment(values, model, user))


def _environment(values: Mapping[str, Any], model: Model, user: Settings) -> dict[str, str]:
    """What the user's environment says of other things is taken away (an empty value does that)."""
    import json

    taken = {name: "" for name in os.environ if name.startswith("ATELIER_") and not name.startswith(_KEPT_PREFIXES)}
    plain = {name: value for name, value in values.items() if name != "llm_api_key"}
    told = {
        f"ATELIER_{name.upper()}": json.dumps(value) if isinstance(value, dict | tuple | bool) else str(value)
        for name, value in plain.items()
    }
    key = user.llm_api_key.get_secret_value() if user.llm_api_key and not model.scripted else ""
    return {**taken, **told, "ATELIER_LLM_API_KEY": key}


def demo_home(user: Settings) -> Path:
    """Where the demo of this installation lives."""
    return user.home.resolve() / "demo"


@contextmanager
def only_demo(home: Path) -> Generator[None]:
    """Hold the one lock of this home's demo. Raises `Refused` while another one runs, `Unavailable`."""
    with _open_lock(home.parent) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                "another demo runs here already", fix="end it first, or set ATELIER_HOME to another directory"
            ) from None
        yield


def _open_lock(folder: Path) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / "demo.lock").open("w")
    except OSError as error:
        raise Unavailable(
            f"{folder} cannot be written: {error.strerror}", fix="set ATELIER_HOME to a directory of yours"
        ) from None


def fresh_home(home: Path, *, keep: bool) -> None:
    """An empty home. Only what a demo made is ever removed. Raises `Refused` for anything else that lies there."""
    if home.exists() and not keep:
        if any(home.iterdir()) and not (home / _MARKER).exists():
            raise Refused(f"{home} was not made by a demo", fix="move it away, or set ATELIER_HOME")
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    (home / _MARKER).touch()
