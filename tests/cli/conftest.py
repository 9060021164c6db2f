"""A home of its own for every test, and a runner of commands in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atelier_dagster.cli.app import app
from tests.support.program import Atelier, Ran


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home; nothing of this machine's configuration is seen."""
    for name in [name for name in os.environ if name.startswith(("ATELIER_", "DAGSTER_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    monkeypatch.setenv("ATELIER_HOME", str(home))
    monkeypatch.setenv("ATELIER_DAGSTER_URL", "http://127.0.0.1:9")  # the discard port: nobody answers
    monkeypatch.setenv("COLUMNS", "200")
    return home


@pytest.fixture
def atelier(home: Path) -> Atelier:
    """Runs a command in this process."""

    def run(*arguments: str, stdin: str = "") -> Ran:
        result = CliRunner().invoke(app, list(arguments), input=stdin, catch_exceptions=False)
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run
