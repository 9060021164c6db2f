"""The real OpenCode in a plain folder: what it is told is what a workshop would be told, only without a sandbox."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from atelier_dagster.agents import OpenCode, find_opencode
from atelier_dagster.ports import Agent, AgentTask, ExecResult

ROOT = Path(__file__).parents[2]


def opencode_binary() -> Path:
    """The installed program; its absence is a failure, never a skip."""
    binary = find_opencode(ROOT / ".atelier" / "tools", override=os.environ.get("ATELIER_AGENT_BINARY", ""))
    assert binary is not None, "OpenCode is missing: run `python3 bootstrap.py setup`"
    return binary


def real_opencode() -> OpenCode:
    """OpenCode, called by its path on this machine."""
    binary = opencode_binary()
    return OpenCode(binary, program=str(binary))


def run_agent(
    agent: Agent, prompt: str, *, checkout: Path, home: Path, model_url: str, env: Mapping[str, str] | None = None
) -> ExecResult:
    """Run an agent in `checkout`, as an exec in a workshop would."""
    task = AgentTask(prompt=prompt, model="atelier-script", model_url=model_url, home=str(home), timeout=120)
    command = agent.command(task)
    for path, data in command.files.items():
        target = home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    scrubbed = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **(env or {}), **command.env}
    done = subprocess.run(
        command.argv,
        cwd=checkout,
        env=scrubbed,
        input=command.stdin,
        capture_output=True,
        timeout=task.timeout,
        check=False,
    )
    return ExecResult("test", done.returncode, done.stdout, done.stderr)


def git(checkout: Path, *arguments: str) -> str:
    """Run git with an identity of its own and no configuration of this machine's."""
    identity = {
        f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **identity}
    argv = ("git", "-C", str(checkout), *arguments)
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60).stdout
