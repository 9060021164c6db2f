"""Repositories taken in, tickets written and listed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from atelier_dagster.cli.local import name_for
from atelier_dagster.factory.errors import InvalidInput
from tests.support.program import Atelier


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "my shop"
    subprocess.run(["git", "init", "-q", "-b", "trunk", str(path)], check=True)
    return path


def test_init_takes_a_path_in_and_says_what_comes_next(atelier: Atelier, source: Path) -> None:
    ran = atelier("init", str(source))
    assert ran.code == 0, ran.err
    assert "local/me/my-shop taken in" in ran.out
    assert "branch trunk" in ran.out
    assert "atelier ticket new local/me/my-shop" in ran.out


def test_init_twice_leaves_the_first_as_it_is(atelier: Atelier, source: Path) -> None:
    first = atelier("init", str(source), "--as", "local/acme/shop", "--json").json
    second = atelier("init", str(source), "--as", "acme/shop", "--json").json
    assert first["created"] is True
    assert second["created"] is False
    assert first["path"] == second["path"]
    assert first["notes"]


def test_init_of_nothing_says_so_in_one_line(atelier: Atelier) -> None:
    ran = atelier("init", "./not-there", "--as", "local/a/b")
    assert ran.code == 1
    assert ran.err.startswith("[")
    assert ran.err.count("\n") == 1
    assert "Fix:" in ran.err


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("https://example.org/acme/shop.git", "local/acme/shop"),
        ("https://example.org/group/sub/shop", "local/sub/shop"),
        ("ssh://git@example.org/acme/shop.git/", "local/acme/shop"),
        ("git@example.org:acme/shop.git", "local/acme/shop"),
        ("/srv/code/shop", "local/me/shop"),
        ("/srv/code/shop/.git", "local/me/shop"),
        ("../über shop", "local/me/ber-shop"),
    ],
)
def test_a_name_is_found_in_paths_and_urls(source: str, name: str) -> None:
    assert str(name_for(source)) == name


def test_the_present_directory_has_the_name_of_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop").mkdir()
    monkeypatch.chdir(tmp_path / "shop")
    assert str(name_for(".")) == "local/me/shop"


def test_a_source_without_a_usable_name_asks_for_one() -> None:
    with pytest.raises(InvalidInput, match="gives no name") as caught:
        name_for("https://example.org/acme/§§§")
    assert "--as" in caught.value.fix


def test_tickets_are_written_with_the_starting_label(atelier: Atelier, source: Path) -> None:
    atelier("init", str(source), "--as", "acme/shop")
    ran = atelier("ticket", "new", "acme/shop", "--title", "A $(title) `of` sorts", "--body", "why")
    assert ran.out == "local/acme/shop#1\n"
    listed = atelier("ticket", "list", "--json").json["tickets"]
    assert [(t["ticket"], t["title"], t["labels"]) for t in listed] == [
        ("local/acme/shop#1", "A $(title) `of` sorts", ["atelier"])
    ]


def test_a_body_comes_from_a_file_or_stdin(atelier: Atelier, source: Path, tmp_path: Path, home: Path) -> None:
    atelier("init", str(source), "--as", "acme/shop")
    (tmp_path / "body.md").write_text("from a file", "utf-8")
    atelier("ticket", "new", "acme/shop", "--title", "a", "--body-file", "body.md")
    atelier("ticket", "new", "acme/shop", "--title", "b", "--body-file", "-", "--hold", stdin="from stdin")
    tickets = home / "forge" / "acme" / "shop" / "tickets"
    assert "from a file" in (tickets / "1.md").read_text("utf-8")
    assert "from stdin" in (tickets / "2.md").read_text("utf-8")
    assert "labels" not in (tickets / "2.md").read_text("utf-8")


def test_a_missing_body_file_is_one_line(atelier: Atelier) -> None:
    ran = atelier("ticket", "new", "acme/shop", "--title", "a", "--body-file", "gone.md")
    assert (ran.code, ran.err) == (1, "[SYSTEM] gone.md: No such file or directory\n")


def test_two_bodies_are_bad_usage(atelier: Atelier) -> None:
    assert atelier("ticket", "new", "a/b", "--title", "t", "--body", "x", "--body-file", "y").code == 2


def test_closed_tickets_are_listed_on_request(atelier: Atelier, source: Path, home: Path) -> None:
    atelier("init", str(source), "--as", "acme/shop")
    atelier("ticket", "new", "acme/shop", "--title", "a [red]b[/]")
    path = home / "forge" / "acme" / "shop" / "tickets" / "1.md"
    path.write_text(path.read_text("utf-8").replace("state: open", "state: closed"), "utf-8")
    assert atelier("ticket", "list", "--json").json["tickets"] == []
    everything = atelier("ticket", "list", "acme/shop", "--all")
    assert "a [red]b[/]" in everything.out
    assert "closed" in everything.out


def test_an_unknown_repository_is_named(atelier: Atelier) -> None:
    ran = atelier("ticket", "new", "acme/none", "--title", "a")
    assert ran.code == 1
    assert "[NOT_FOUND] there is no repository local/acme/none" in ran.err
