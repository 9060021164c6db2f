"""`atelier demo` as a stranger runs it: one command, a whole journey, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.opencode import opencode_binary

pytestmark = [pytest.mark.journey, pytest.mark.timeout(1200)]

_LIMIT = 1100.0


def demo(place: Path, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a demo in a directory of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ATELIER_", "DAGSTER_"))}
    clean |= {"ATELIER_AGENT_BINARY": str(opencode_binary()), **(env or {})}
    return subprocess.run(
        [sys.executable, "-m", "atelier_dagster.cli", "demo", "--exit", "--time-limit", "1000", *arguments],
        cwd=place, env=clean, capture_output=True, text=True, timeout=_LIMIT, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def processes_of(place: Path) -> list[str]:
    """Command lines of processes that work below a directory."""
    found: list[str] = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            cwd = (proc / "cwd").readlink()
            command = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(place) in command or cwd.is_relative_to(place):
            found.append(command)
    return found


def test_a_stranger_sees_a_ticket_merged_and_verified(tmp_path: Path) -> None:
    done = demo(tmp_path, "--yes")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "A script answers in place of a model" in done.stdout
    assert "Every journey ended as it should." in done.stdout
    assert "no cost: a script answered" in done.stdout
    evidence = [line for line in done.stdout.splitlines() if line.strip().startswith("evidence: ")]
    assert evidence
    assert all(Path(line.split()[-1]).is_file() for line in evidence)
    assert not list((tmp_path / ".atelier" / "demo" / "workshops").glob("*/workshop.json"))


def test_a_qa_workshop_that_cannot_start_ends_the_journey_with_a_failed_verdict(tmp_path: Path) -> None:
    done = demo(tmp_path, "--yes", "--ticket", "broken-infra")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "does-not-exist" in done.stdout
    assert "merged as" in done.stdout


def test_what_takes_too_long_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    done = demo(tmp_path, "--yes", "--time-limit", "15")
    assert done.returncode == 1
    assert "[TIMED_OUT]" in done.stderr
    assert "--time-limit" in done.stderr
    assert "Traceback" not in done.stderr
    own = [command for command in processes_of(tmp_path) if "_warm.worker" not in command]  # it ends by itself
    assert own == []


def test_an_unknown_ticket_is_refused_at_once(tmp_path: Path) -> None:
    done = demo(tmp_path, "--ticket", "nonsense")
    assert done.returncode == 1
    assert "url-shortener" in done.stderr
