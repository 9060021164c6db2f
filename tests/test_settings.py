"""Settings: where they come from, what is said of wrong ones, and that the documentation names them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.settings import Settings, load_settings

_DOC = Path(__file__).parents[1] / "docs" / "configuration.md"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory without an `atelier.toml`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_environment_wins_over_the_file(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "atelier.toml").write_text('label = "factory"\nreview_redos = 1\n')
    monkeypatch.setenv("ATELIER_LABEL", "agent")
    settings = load_settings()
    assert (settings.label, settings.review_redos) == ("agent", 1)


def test_an_empty_variable_is_as_good_as_none(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "atelier.toml").write_text('label = "factory"\n')
    for name in Settings.model_fields:
        monkeypatch.setenv(f"ATELIER_{name.upper()}", "")
    assert load_settings() == Settings(label="factory")


@pytest.mark.parametrize("text", ["alice, bob", '["alice", "bob"]', "alice,bob,"])
def test_lists_in_the_environment(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATELIER_APPROVERS", text)
    assert load_settings().approvers == ("alice", "bob")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ATELIER_REVIEW_REDOS", "many"),
        ("ATELIER_PLAN_REVIEW", "sometimes"),
        ("ATELIER_AUTHORS", "[not json"),
        ("ATELIER_AGENT_TIMEOUT", "-1"),
    ],
)
def test_a_wrong_setting_is_named_and_its_value_is_not_shown(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput) as caught:
        load_settings()
    assert name.removeprefix("ATELIER_").lower() in str(caught.value)
    assert value not in str(caught.value) or value == "-1"


def test_an_unknown_setting_in_the_file_is_refused(elsewhere: Path) -> None:
    (elsewhere / "atelier.toml").write_text('lable = "typo"\n')
    with pytest.raises(InvalidInput, match="lable"):
        load_settings()


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATELIER_LLM_API_KEY", "sk-very-secret")
    assert "sk-very-secret" not in repr(load_settings())
    assert "sk-very-secret" not in load_settings().model_dump_json()


@pytest.mark.parametrize("name", ["llm_api_key", "s3_secret_access_key"])
def test_a_secret_in_the_file_is_refused(name: str, elsewhere: Path) -> None:
    (elsewhere / "atelier.toml").write_text(f'{name} = "sk-very-secret"\n')
    with pytest.raises(InvalidInput, match=name) as caught:
        load_settings()
    assert "sk-very-secret" not in str(caught.value)


def test_every_setting_is_documented() -> None:
    documented = set(re.findall(r"`ATELIER_([A-Z0-9_]+)`", _DOC.read_text()))
    assert documented == {name.upper() for name in Settings.model_fields}
