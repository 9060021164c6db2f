"""OpenCode as an agent: its command, its configuration, where its program is. Reading its output is in `_events`."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shutil
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from atelier_dagster.agents._events import read_answer
from atelier_dagster.ports import AgentAnswer, AgentCommand, AgentTask, Check, ExecResult

MOUNT = "/opt/opencode/bin/opencode"
"""Where a local workshop sees the program."""

_CONFIG_HOME = ".agent/config"
_CONFIG = f"{_CONFIG_HOME}/opencode/opencode.json"
_GUARD = f"{_CONFIG_HOME}/opencode/guard.js"
_START = ".agent/start.sh"
_OLDEST = (1, 18)
_INSTALL = "run `python3 bootstrap.py setup`, or set ATELIER_AGENT_BINARY to an installed OpenCode"
# With a title given, no model is paid to invent one.
_OPTIONS = ("--auto", "--format", "json", "--title", "Atelier")
_SWITCHES = (
    # A repository's own agent configuration is not trusted: opencode.json, .opencode/, AGENTS.md, CLAUDE.md, skills.
    "OPENCODE_DISABLE_PROJECT_CONFIG",
    "OPENCODE_DISABLE_CLAUDE_CODE",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS",
    # Nothing is fetched but what the work itself needs.
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    "OPENCODE_DISABLE_SHARE",
    "OPENCODE_DISABLE_TERMINAL_TITLE",
)


class OpenCode:
    """OpenCode, run once per task without a terminal.

    `binary` is the program on the host; `program` is what commands inside a workshop call it (by default where
    `mounts` puts the binary, or `opencode` on the PATH when there is no binary to mount).
    `context_tokens` and `output_tokens` are what the model takes, for the agent to shorten long sessions by.
    """

    def __init__(
        self,
        binary: Path | None,
        *,
        program: str = "",
        context_tokens: int = 128_000,
        output_tokens: int = 16_000,
    ) -> None:
        self._binary = binary
        self._program = program or (MOUNT if binary else "opencode")
        self._limit = {"context": context_tokens, "output": output_tokens}

    def command(self, task: AgentTask) -> AgentCommand:
        """The prompt goes in by stdin, so it is neither in argv nor seen by a shell, whatever its size."""
        home = task.home.rstrip("/")
        folders = {f"XDG_{kind}_HOME": f"{home}/.agent/{kind.lower()}" for kind in ("CONFIG", "DATA", "CACHE", "STATE")}
        env = {
            "HOME": home,
            **folders,
            "OPENCODE_CONFIG": f"{home}/{_CONFIG}",
            **dict.fromkeys(_SWITCHES, "1"),
        }
        return AgentCommand(
            argv=("/bin/sh", f"{home}/{_START}", self._program, *_OPTIONS, "--model", f"atelier/{task.model}"),
            env=env,
            files={
                _CONFIG: _json(self._config(task, home)),
                _GUARD: _resource("guard.js"),
                _START: _resource("start.sh"),
                **_installed_nothing(),
            },
            stdin=task.prompt.encode(),
        )

    def read(self, result: ExecResult) -> AgentAnswer:
        """See `Agent.read`."""
        return read_answer(result)

    def mounts(self) -> Sequence[tuple[Path, str]]:
        """The program is one self-contained file."""
        return [(self._binary, MOUNT)] if self._binary else []

    async def preflight(self) -> Sequence[Check]:
        """Whether the program is there, runs, and is new enough."""
        if self._binary is None:
            return [Check("agent", False, "OpenCode was not found", _INSTALL)]
        try:
            version = await _version(self._binary)
        except (OSError, TimeoutError) as error:
            return [Check("agent", False, f"{self._binary} does not run: {error or 'no answer in 20 s'}", _INSTALL)]
        new_enough = tuple(map(int, version.split(".")[:2])) >= _OLDEST if version else False
        detail = f"OpenCode {version or 'of an unknown version'} at {self._binary}"
        return [Check("agent", new_enough, detail, "" if new_enough else _INSTALL)]

    def _config(self, task: AgentTask, home: str) -> dict[str, object]:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Atelier",
            "options": {"baseURL": task.model_url, "apiKey": "added-outside-the-workshop"},
            "models": {task.model: {"name": task.model, "limit": self._limit}},
        }
        return {
            "$schema": "https://opencode.ai/config.json",
            "autoupdate": False,
            "share": "disabled",
            "snapshot": False,
            "lsp": False,
            "formatter": False,
            "permission": "allow",
            "model": f"atelier/{task.model}",
            "small_model": f"atelier/{task.model}",
            "enabled_providers": ["atelier"],
            "provider": {"atelier": provider},
            "plugin": [f"file://{home}/{_GUARD}"],
        }


def find_opencode(tools: Path, *, override: str = "", search_path: str | None = None) -> Path | None:
    """OpenCode's program: `override` if it names a file, else the one installed below `tools`, else on the PATH."""
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(
        platform.machine().lower(), ""
    )
    installed = tools / "opencode" / "node_modules" / f"opencode-linux-{machine}" / "bin" / "opencode"
    on_path = shutil.which("opencode", path=search_path)
    if override:
        return Path(override).absolute() if Path(override).is_file() else None
    if installed.is_file() and os.access(installed, os.X_OK):
        return installed.absolute()
    return Path(on_path).resolve() if on_path else None


async def _version(binary: Path) -> str:
    """What `--version` prints, "" when that is no version. Raises `OSError`, `TimeoutError`."""
    process = await asyncio.create_subprocess_exec(
        str(binary),
        "--version",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(20):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    found = re.search(r"\d+\.\d+\.\d+", out[:200].decode(errors="replace"))
    return found.group() if found else ""


def _installed_nothing() -> dict[str, bytes]:
    """Tell OpenCode that its plugin library is installed: it is only types, and a workshop may have no registry."""
    wanted = {"@opencode-ai/plugin": "*"}
    folder = f"{_CONFIG_HOME}/opencode"
    return {
        f"{folder}/package.json": _json({"dependencies": wanted}),
        f"{folder}/package-lock.json": _json({"lockfileVersion": 3, "packages": {"": {"dependencies": wanted}}}),
        f"{folder}/node_modules/.keep": b"",
    }


def _resource(name: str) -> bytes:
    return resources.files("atelier_dagster.agents").joinpath(name).read_bytes()


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode()
