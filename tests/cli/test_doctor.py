"""Preflight: everything is asked, within a limit, and what fails has a fix."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import SecretStr

from atelier_dagster.cli import doctor
from atelier_dagster.factory.errors import Unavailable
from atelier_dagster.ports import Check
from atelier_dagster.settings import Settings
from tests.support.program import Atelier

NAMES = {"python", "git", "node", "home"}


def test_without_a_model_it_is_not_ready_and_says_how(atelier: Atelier) -> None:
    ran = atelier("doctor", "--json")
    assert ran.code == 1
    assert ran.json["ok"] is False
    checks = {check["name"]: check for check in ran.json["checks"]}
    assert set(checks) >= NAMES
    assert checks["git"]["ok"]
    failed = [check for check in ran.json["checks"] if check["required"] and not check["ok"]]
    assert any("model" in check["name"] for check in failed)
    assert all(check["fix"] for check in failed)
    assert all(set(check) == {"name", "ok", "required", "detail", "fix"} for check in ran.json["checks"])


def test_no_secret_is_shown(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATELIER_LLM_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("ATELIER_LLM_MODEL", "m")
    monkeypatch.setenv("ATELIER_LLM_API_KEY", "sk-very-secret")
    ran = atelier("doctor")
    assert ran.code == 1
    assert "sk-very-secret" not in ran.out + ran.err
    assert "not ready" in ran.out


async def _hangs() -> Sequence[Check]:
    await asyncio.Event().wait()
    return []


async def _breaks() -> Sequence[Check]:
    raise Unavailable("nobody there", fix="start it")


async def _denies() -> Sequence[Check]:
    raise PermissionError(13, "Permission denied")


async def test_a_part_that_hangs_or_breaks_is_one_failed_check(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def configured(_: Settings) -> list[tuple[str, doctor.Part]]:
        return [("hanging", _hangs), ("broken", _breaks), ("denied", _denies)]

    monkeypatch.setattr(doctor, "configured", configured)
    checks = {check.name: check for check in await doctor.examine(Settings(home=home), limit=2.0)}
    assert "no answer within" in checks["hanging"].detail
    assert (checks["broken"].detail, checks["broken"].fix) == ("nobody there", "start it")
    assert checks["denied"].detail == "Permission denied"
    assert not any(checks[name].ok for name in ("hanging", "broken", "denied"))
    assert checks["python"].ok


def test_the_table_takes_texts_literally(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    doctor.show([Check("a", False, "[red]odd[/]", "mend [it]"), Check("b", False, "c", "d", required=False)])
    out = capsys.readouterr().out
    assert "[red]odd[/]" in out
    assert "mend [it]" in out
    assert "1 failed, 1 warnings" in out


def test_a_home_that_is_a_file_fails(tmp_path: Path, home: Path) -> None:
    home.write_text("", "utf-8")
    settings = Settings(home=home, llm_api_key=SecretStr("x"))
    (check,) = asyncio.run(doctor.check_home(settings))
    assert not check.ok
    assert "ATELIER_HOME" in check.fix
