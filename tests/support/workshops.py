"""What tests of workshops share: a repository to start from, specs, and a short way to run a command."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from atelier_dagster.ports import ExecRequest, ExecResult, GitRemote, RepoSource, Workshops, WorkshopSpec

_ids = itertools.count()
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b.invalid",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b.invalid",
    "PATH": os.environ["PATH"],
}


def git(directory: Path, *arguments: str) -> str:
    """Run git on the host; gives its output."""
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments], check=True, capture_output=True, text=True, env=GIT
    )
    return done.stdout.strip()


def bare_repository(root: Path, files: Mapping[str, str], branch: str = "trunk") -> RepoSource:
    """A bare repository with one commit of some files, and another branch that nobody asks for."""
    work, bare = root / "work", root / "repository.git"
    work.mkdir(parents=True)
    git(work, "init", "-q", "-b", branch)
    for name, text in files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "first")
    commit = git(work, "rev-parse", "HEAD")
    git(work, "checkout", "-q", "-b", "other")
    (work / "other.txt").write_text("of another branch")
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "elsewhere")
    git(root, "clone", "-q", "--bare", str(work), str(bare))
    return RepoSource(bare, GitRemote(str(bare)), branch, commit)


def spec_for(source: RepoSource, name: str = "pm-test", **changes: Any) -> WorkshopSpec:
    """A spec with everything else as it usually is."""
    return replace(WorkshopSpec(name, source, campaign="campaign", ticket="ticket"), **changes)


def request(*argv: str, **changes: Any) -> ExecRequest:
    """A request with an id of its own and a time limit that fits a test."""
    return replace(ExecRequest(f"exec-{next(_ids)}", argv, timeout=60.0), **changes)


async def run(workshops: Workshops, name: str, *argv: str, **changes: Any) -> ExecResult:
    """Run a command under an id of its own."""
    return await workshops.exec(name, request(*argv, **changes))


async def sh(workshops: Workshops, name: str, script: str, **changes: Any) -> ExecResult:
    """Run a shell script under an id of its own."""
    return await run(workshops, name, "sh", "-c", script, **changes)


async def ready(workshops: Workshops, spec: WorkshopSpec) -> str:
    """Create, wait, and give the name."""
    await workshops.create(spec)
    await workshops.wait_running(spec.name, timeout=60)
    return spec.name


async def until(condition: Callable[[], Awaitable[bool]], limit: float = 20.0) -> None:
    """Wait for something that another process does. Raises `TimeoutError`."""
    async with asyncio.timeout(limit):
        while not await condition():  # noqa: ASYNC110 - nothing to be told by
            await asyncio.sleep(0.02)
