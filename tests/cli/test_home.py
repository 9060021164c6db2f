"""Dagster's directory in a home: absolute, made once, safe to make again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import dagster as dg
import pytest
import yaml

from atelier_dagster.cli import home as homes
from atelier_dagster.factory.errors import InvalidInput, NotFound, Unavailable
from atelier_dagster.settings import load_settings


def test_every_path_below_the_home_becomes_absolute(tmp_path: Path) -> None:
    source = tmp_path / "dagster.yaml"
    source.write_text("a: {base_dir: .atelier/dagster, list: [.atelier/x, .atelierx, /abs, other]}\nb: 1\n", "utf-8")
    rendered = yaml.safe_load(homes.render_config(tmp_path / "h", source))
    home = (tmp_path / "h").resolve()
    assert rendered["a"] == {"base_dir": f"{home}/dagster", "list": [f"{home}/x", ".atelierx", "/abs", "other"]}
    assert rendered["b"] == 1


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        homes.render_config(tmp_path, tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [", "utf-8")
    with pytest.raises(InvalidInput):
        homes.render_config(tmp_path, tmp_path / "bad.yaml")


def test_a_home_is_made_once_and_works(tmp_path: Path) -> None:
    directory = asyncio.run(homes.prepare_home(tmp_path / "h"))
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir() if path.suffix == ".yaml"}
    asyncio.run(homes.prepare_home(tmp_path / "h"))
    assert before == {path: path.stat().st_mtime_ns for path in before}
    with dg.DagsterInstance.from_config(str(directory)) as instance:
        assert instance.get_runs() == []
        assert str(tmp_path) in instance.storage_directory()


def test_a_home_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(Unavailable) as caught:
        asyncio.run(homes.prepare_home(tmp_path / "file"))
    assert "ATELIER_HOME" in caught.value.fix


def test_the_webserver_is_found_where_it_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert homes.webserver_url(load_settings()) == "http://127.0.0.1:9"  # as configured
    monkeypatch.delenv("ATELIER_DAGSTER_URL")
    assert homes.webserver_url(load_settings()) == "http://127.0.0.1:3000"  # the default
    homes.dagster_directory(home).mkdir(parents=True)
    homes.note_address(home, "http://127.0.0.1:4711")
    assert homes.webserver_url(load_settings()) == "http://127.0.0.1:4711"
    (homes.dagster_directory(home) / "webserver.json").write_text(json.dumps(["?"]), "utf-8")
    assert homes.webserver_url(load_settings()) == "http://127.0.0.1:3000"
    homes.forget_address(home)
    homes.forget_address(home)
