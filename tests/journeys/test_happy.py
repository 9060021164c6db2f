"""A whole ticket through sensors and the run queue, as users run it, where everybody agrees."""

from __future__ import annotations

import asyncio

import pytest

from atelier_dagster.factory.change import Ending, Merge
from atelier_dagster.factory.verdict import QaDecision
from tests.support.installation import Installation

pytestmark = pytest.mark.journey

FILES = {"README.md": "# Shop\n", ".devcontainer/test.sh": "echo ok\n"}


def test_a_labelled_ticket_ends_merged_and_examined(house: Installation) -> None:
    repo = house.repository("happy", FILES)
    key = house.ticket(repo, "Add a feature", "Please add it.")
    opened = house.deliver(key)
    assert opened.changed_files >= 1
    assert opened.concerns == ()
    assert house.history(key).current("approval") is None, "nobody decided yet"

    outcome = house.finish(key)

    assert outcome.ending is Ending.MERGED
    history = house.history(key)
    merge = history.value("merge", Merge)
    assert merge is not None and merge.merged
    assert asyncio.run(house.forge.branch_head(repo, "main")) == merge.commit
    report = history.current("qa_report").artifact.value  # type: ignore[union-attr]
    assert report.verdict.verdict is QaDecision.PASS
    assert [evidence.path for evidence in report.evidence] == [".qa-evidence/exchange.txt"]
    assert not asyncio.run(house.tracker.get_issue(key)).is_open
    assert any("merged" in comment for comment in house.comments(key))
