"""A demo's own home and settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from atelier_dagster.cli.demo.place import Model, fresh_home, make_place, only_demo, own_model
from atelier_dagster.factory.errors import InvalidInput, Refused, Unavailable
from atelier_dagster.settings import Settings

SCRIPT = Model("http://127.0.0.1:1/v1", "script", scripted=True)


def test_only_what_a_demo_made_is_removed(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work", "utf-8")
    with pytest.raises(Refused):
        fresh_home(home, keep=False)
    assert (home / "thesis.txt").exists()


def test_a_home_is_fresh_each_time_or_kept(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    fresh_home(home, keep=False)
    (home / "old").touch()
    fresh_home(home, keep=True)
    assert (home / "old").exists()
    fresh_home(home, keep=False)
    assert not (home / "old").exists()


def test_there_is_one_demo_at_a_time(tmp_path: Path) -> None:
    with only_demo(tmp_path / "demo"), pytest.raises(Refused), only_demo(tmp_path / "demo"):
        pass
    with only_demo(tmp_path / "demo"):
        pass


def test_a_home_that_cannot_be_written_is_said_with_what_helps(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="ATELIER_HOME"), only_demo(tmp_path / "file" / "demo"):
        pass


def test_the_users_other_settings_do_not_reach_it(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATELIER_ARTIFACTS", "s3")
    monkeypatch.setenv("ATELIER_PLAN_REVIEW", "human")
    Path("atelier.toml").write_text('label = "other"\nworkshops_memory_mib = 2048\n', "utf-8")
    place = make_place(Settings(), tmp_path / "demo", SCRIPT)
    assert (place.settings.artifacts, place.settings.plan_review, place.settings.label) == (
        "directory",
        "auto",
        "atelier",
    )
    assert place.settings.workshops_memory_mib == 2048
    assert place.environment["ATELIER_ARTIFACTS"] == ""
    assert place.environment["ATELIER_PLAN_REVIEW"] == ""


def test_both_processes_are_told_the_same(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = Settings(
        llm_base_url="http://h/v1", llm_model="m", llm_api_key=SecretStr("k"), llm_role_models={"code": "n"},
        agent="command", agent_command=("a", "b c"), egress=("example.org",),
    )  # fmt: skip
    model = own_model(user)
    assert model is not None
    place = make_place(user, tmp_path / "demo", model, broken_qa=True)
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
        if not value:
            monkeypatch.delenv(name)
    read = Settings()
    assert read.model_dump() == place.settings.model_dump()


def test_a_scripted_model_is_given_no_key(tmp_path: Path, home: Path) -> None:
    place = make_place(Settings(llm_api_key=SecretStr("k")), tmp_path / "demo", SCRIPT)
    assert place.environment["ATELIER_LLM_API_KEY"] == ""
    assert place.settings.llm_api_key is None


@pytest.mark.parametrize("half", [{"llm_base_url": "http://h/v1"}, {"llm_model": "m"}])
def test_half_a_model_is_none(half: dict[str, str], home: Path) -> None:
    with pytest.raises(InvalidInput, match="only in part"):
        own_model(Settings(**half))  # pyright: ignore[reportArgumentType]
