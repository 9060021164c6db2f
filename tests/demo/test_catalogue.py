"""Tickets are understood from their words, also from other words; sample repositories are what they say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from atelier_dagster.demo import catalogue, get_ticket
from atelier_dagster.demo.features import FEATURES, recognise, wanted_by_somebody_never_content
from atelier_dagster.demo.repositories import build, names
from atelier_dagster.factory.errors import InvalidInput, NotFound
from tests.support.demo import REWORDED, as_ticket, passes_its_tests
from tests.support.opencode import git

WANTED = {
    "url-shortener": ["url-shortener"],
    "rest-api": ["search"],
    "bad-split": ["lending"],
    "auth-module": ["auth"],
    "rename-field": ["rename-field"],
    "failing-tests": ["ratings"],
    "stubborn": ["health"],
    "two-halves": ["export", "statistics"],
    "broken-infra": ["version"],
}


@pytest.mark.parametrize("name", WANTED)
def test_tickets_are_understood_also_in_other_words(name: str) -> None:
    ticket = catalogue()[name]
    title, body = REWORDED[name]
    for told in (f"Title: {ticket.title}\n\n{ticket.body}", f"Title: {title}\n\n{body}"):
        assert [feature.name for feature in recognise(told)] == WANTED[name]
        assert wanted_by_somebody_never_content(told) == (name == "stubborn")


def test_catalogue_is_complete_and_consistent() -> None:
    assert list(catalogue()) == list(WANTED)
    for ticket in catalogue().values():
        assert ticket.repository is None or ticket.repository in names()
        assert ticket.labels == ("atelier",)
        assert ticket.expect.tasks in {1, 2}
    assert catalogue()["broken-infra"].broken_qa
    assert catalogue()["auth-module"].expect.reviews == ("code", "security")
    with pytest.raises(NotFound, match="no-such"):
        get_ticket("no-such")


def test_every_feature_has_files_and_checks() -> None:
    for feature in FEATURES:
        assert 2 <= len(feature.criteria) <= 5
        assert feature.checks
        assert feature.files() or feature.command or feature.edits


def test_sample_repository_has_a_history_and_passes_its_tests(tmp_path: Path) -> None:
    build("bookshelf", tmp_path / "one.git", branch="trunk")
    build("bookshelf", tmp_path / "two.git", branch="trunk")
    log = git(tmp_path / "one.git", "log", "--format=%H %s", "trunk")
    assert len(log.splitlines()) == 3
    assert log == git(tmp_path / "two.git", "log", "--format=%H %s", "trunk")
    assert git(tmp_path / "one.git", "symbolic-ref", "HEAD").strip() == "refs/heads/trunk"
    subprocess.run(["git", "clone", "-q", str(tmp_path / "one.git"), str(tmp_path / "clone")], check=True)
    assert passes_its_tests(tmp_path / "clone")


def test_an_empty_repository_has_no_commits(tmp_path: Path) -> None:
    build(None, tmp_path / "empty.git")
    assert git(tmp_path / "empty.git", "for-each-ref") == ""
    with pytest.raises(InvalidInput):
        build(None, tmp_path / "empty.git")
    with pytest.raises(NotFound):
        build("none", tmp_path / "none.git")


def test_tickets_read_as_intake_would_read_them() -> None:
    for ticket in catalogue().values():
        assert as_ticket(ticket).is_greenfield == (ticket.repository is None)
