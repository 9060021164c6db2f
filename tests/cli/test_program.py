"""The program as a person runs it: exit codes, errors in one line, a quick start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

_LIMIT = 60.0
HEAVY = ("dagster", "openai", "lancedb", "grpc", "boto3")


def program(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ATELIER_", "DAGSTER_"))}
    return subprocess.run(
        [sys.executable, "-m", "atelier_dagster.cli", *arguments],
        cwd=cwd, env={**clean, **env}, capture_output=True, text=True, timeout=_LIMIT, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--help",), 0),
        (("--version",), 0),
        (("audit", "--help"), 0),
        (("nonsense",), 2),
        (("submit",), 2),
        (("demo", "--port", "99999"), 2),
        (("demo", "--repo", "x"), 2),
        (("status", "not-a-ticket"), 1),
        (("status", "local/a/b#1"), 1),
        (("audit", "verify", "local/a/b#1"), 1),
    ],
)
def test_exit_codes(arguments: tuple[str, ...], code: int, tmp_path: Path) -> None:
    done = program(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    if code == 1:
        assert done.stderr.startswith("[")
        assert done.stderr.count("\n") == 1
        assert "Fix:" in done.stderr


def test_a_wrong_setting_is_named_without_its_value(tmp_path: Path) -> None:
    done = program("status", cwd=tmp_path, ATELIER_PLAN_REVIEW="s3cret")
    assert done.returncode == 1
    assert "plan_review" in done.stderr
    assert "s3cret" not in done.stderr


def test_debugging_shows_the_traceback(tmp_path: Path) -> None:
    done = program("status", "not-a-ticket", cwd=tmp_path, ATELIER_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "INVALID_INPUT" in done.stderr


def test_what_nobody_foresaw_is_one_line_too(tmp_path: Path) -> None:
    code = "import sys; sys.argv[1:] = ['doctor']; from atelier_dagster.cli import doctor, main; del doctor.run; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=_LIMIT, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("[INTERNAL] AttributeError")
    assert "Traceback" not in done.stderr


def test_without_a_terminal_the_help_is_plain(tmp_path: Path) -> None:
    assert "\x1b[" not in program("--help", cwd=tmp_path).stdout


@pytest.mark.parametrize("module", ["app", "local", "decide", "submit", "audit", "completion"])
def test_a_quick_command_imports_nothing_heavy(module: str, tmp_path: Path) -> None:
    code = f"import sys, atelier_dagster.cli.{module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=_LIMIT, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_help_needs_little_time(tmp_path: Path) -> None:
    """CPU time, best of three: what other programs on the machine do must not decide."""
    taken: list[float] = []
    for _ in range(3):
        before = os.times()
        program("--help", cwd=tmp_path)
        after = os.times()
        taken.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(taken) < 0.8, f"{taken} s of CPU time"


def test_completion_offers_tickets(tmp_path: Path) -> None:
    home = tmp_path / "home"
    subprocess.run(["git", "init", "-q", str(tmp_path / "shop")], check=True)
    env = {"ATELIER_HOME": str(home)}
    program("init", "shop", "--as", "acme/shop", cwd=tmp_path, **env)
    program("ticket", "new", "acme/shop", "--title", "a", cwd=tmp_path, **env)
    asked = {"_ATELIER_COMPLETE": "complete_bash", "COMP_WORDS": "atelier status local/a", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", "from atelier_dagster.cli import main; main()"],
        cwd=tmp_path, env={**os.environ, **env, **asked}, capture_output=True, text=True, timeout=_LIMIT, check=False,
    )  # fmt: skip
    assert "local/acme/shop#1" in done.stdout, done.stderr


def test_a_script_for_completion_is_printed(tmp_path: Path) -> None:
    began = time.monotonic()
    done = program(
        "--show-completion", cwd=tmp_path, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1", SHELL="/bin/bash"
    )
    assert time.monotonic() - began < _LIMIT
    assert "Traceback" not in done.stderr
