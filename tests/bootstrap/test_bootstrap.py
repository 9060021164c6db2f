"""The installer: what it refuses, what it says, and that it does nothing when everything is there."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bootstrap


def test_machines_without_an_agent_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(bootstrap.Failed, match="x86-64 or arm64"):
        bootstrap.opencode_machine()
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(bootstrap.Failed, match="Linux"):
        bootstrap.opencode_machine()


def test_musl_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "is_musl", lambda: True)
    with pytest.raises(bootstrap.Failed, match="glibc"):
        bootstrap.opencode_machine()


def test_a_failing_step_ends_in_one_line_with_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [sys.executable, "-c", "print('first'); print('last word'); raise SystemExit(3)"]
    with pytest.raises(bootstrap.Failed) as failure:
        bootstrap.run("installing x", argv, "do y")
    assert str(failure.value) == "installing x failed (last word): do y"
    with pytest.raises(bootstrap.Failed, match="cannot be run"):
        bootstrap.run("installing x", ["/no/such/program"], "do y")
    assert "installing x ..." in capsys.readouterr().err


def test_what_is_installed_is_not_installed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bootstrap, "TOOLS", tmp_path / "tools")
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    for path, text in {
        "pyproject.toml": "",
        "uv.lock": "",
        ".venv/bin/python": "",
        ".venv/bin/atelier": "",
        "deploy/opencode/package.json": "{}",
        "deploy/opencode/package-lock.json": "{}",
        "tools/opencode/node_modules/opencode-linux-x64/bin/opencode": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    locked = bootstrap.digest(tmp_path / "pyproject.toml", tmp_path / "uv.lock")
    bootstrap.write(tmp_path / "tools/environment.stamp", f"{locked} dev")
    source = tmp_path / "deploy/opencode"
    bootstrap.write(
        tmp_path / "tools/opencode/stamp",
        bootstrap.digest(source / "package.json", source / "package-lock.json"),
    )
    monkeypatch.setattr(bootstrap, "run", lambda *_, **__: pytest.fail("something was installed"))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    bootstrap.sync_environment(dev=True)
    bootstrap.sync_environment(dev=False)
    bootstrap.install_opencode("linux-x64")


def test_an_incomplete_checkout_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(bootstrap.Failed, match="complete checkout"):
        bootstrap.digest(tmp_path / "uv.lock")


def test_lock_file_has_hashes_and_no_addresses() -> None:
    lock = json.loads((bootstrap.ROOT / "deploy/opencode/package-lock.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert set(packages) == {"node_modules/opencode-linux-arm64", "node_modules/opencode-linux-x64"}
    assert all(entry["integrity"].startswith("sha512-") for entry in packages.values())
    assert len({entry["version"] for entry in packages.values()}) == 1
    assert not re.search(r"https?://", json.dumps(lock))


def test_usage_and_unknown_commands() -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(bootstrap.ROOT / "bootstrap.py"), *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=dict(os.environ))

    assert (call("help").returncode, call("nonsense").returncode, call("run").returncode) == (0, 2, 2)
    assert "usage: python3 bootstrap.py demo" in call().stdout
    assert "Traceback" not in call("nonsense").stderr
