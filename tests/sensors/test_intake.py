"""Intake: what is labelled starts once, what stops is stopped, and a failed read changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atelier_dagster.artifacts import DirectoryStore
from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.change import Ending, Outcome
from atelier_dagster.factory.errors import Unavailable
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.orchestration import partitions, tags
from tests.support.journey import Journey
from tests.support.ticks import Ticks


def test_a_labelled_ticket_starts_once_however_often_it_changes(house: Ticks) -> None:
    key = house.ticket()
    (run,) = house.tick("intake")
    assert (run.job_name, run.tags[tags.PARTITION], run.tags[tags.CYCLE]) == ("deliver", key.partition, "1")
    assert house.tick("intake") == []
    house.ticket(body="Something else.")
    assert house.tick("intake") == []
    house.cursors.clear()  # a cursor that was lost makes everything new
    assert house.tick("intake") == []


def test_what_has_no_label_or_is_closed_is_left_alone(house: Ticks) -> None:
    house.ticket(1, labels=())
    house.ticket(2, labels=("atelier-later",))
    house.ticket(3, state="closed")
    assert house.tick("intake") == []
    assert house.instance.get_dynamic_partitions(partitions.TICKETS) == []
    house.ticket(1)
    house.ticket(3, state="open")
    assert {run.tags[tags.PARTITION] for run in house.tick("intake")} == {"local~demo~shop~1", "local~demo~shop~3"}


def test_an_author_who_may_not_drive_agents_is_told_so_once(house: Ticks) -> None:
    key = house.ticket(author="mallory")
    assert house.tick("intake") == []
    (told,) = house.comments(key)
    assert "mallory has no write access" in told
    house.tick("intake")  # sees our own comment
    house.tracker.asked.clear()
    assert house.tick("intake") == []
    assert "upsert_comment" not in house.tracker.asked
    assert house.comments(key) == [told]


def test_a_configured_author_is_taken_in(house: Ticks) -> None:
    house.settings["authors"] = ("mallory",)
    house.ticket(author="mallory")
    assert len(house.tick("intake")) == 1


@pytest.mark.parametrize("change", [{"state": "closed"}, {"labels": ()}])
def test_a_ticket_that_is_taken_away_is_closed_once(house: Ticks, change: dict[str, Any]) -> None:
    house.ticket()
    (first,) = house.tick("intake")
    house.ticket(**change)
    (run,) = house.tick("intake")
    assert (run.job_name, run.tags[tags.ENDING]) == ("close", "cancelled")
    house.ticket(**change, body="edited meanwhile")
    assert house.tick("intake") == []
    house.end(first)
    house.end(run)


def test_a_cancelled_ticket_that_is_labelled_again_starts_its_next_cycle(house: Ticks) -> None:
    key = house.ticket()
    journey = Journey()
    journey.start()
    house.replay(journey, key)
    house.ticket(labels=())
    (run,) = house.tick("intake")
    house.end(run)
    journey.materialize("outcome", by_hand=Outcome(ending=Ending.CANCELLED))
    house.replay(journey, key, start=len(journey.entries) + len(journey.runs) - 1)
    house.ticket()
    (again,) = house.tick("intake")
    assert (again.job_name, again.tags[tags.CYCLE]) == ("deliver", "2")
    house.ticket(body="edited before the run has read it")
    assert house.tick("intake") == []


def test_a_failed_read_of_one_repository_is_no_answer_and_costs_the_others_nothing(house: Ticks) -> None:
    house.ticket(1, repo="aaa")
    house.ticket(1, repo="bbb")
    house.tracker.broken["issues_changed_since local/demo/aaa"] = Unavailable("no network", fix="wait")
    (run,) = house.tick("intake")
    assert run.tags[tags.PARTITION] == "local~demo~bbb~1"
    assert list(json.loads(house.cursors["intake"] or "")) == ["asked", "local/demo/bbb"]
    assert house.tick("intake") == []
    assert "no network" in str(house.skipped)
    house.tracker.broken.clear()
    assert [run.tags[tags.PARTITION] for run in house.tick("intake")] == ["local~demo~aaa~1"]


def test_a_failed_read_never_closes_what_is_known(house: Ticks) -> None:
    house.ticket()
    house.tick("intake")
    before = house.cursors["intake"]
    for method in ("repositories", "issues_changed_since"):
        house.tracker.broken = {method: Unavailable("no network", fix="wait")}
        assert house.tick("intake") == []
        assert house.cursors["intake"] == before
        assert "no network" in str(house.skipped)


def test_one_ticket_that_cannot_be_answered_now_is_asked_about_again(house: Ticks) -> None:
    refused, fine = house.ticket(1, author="mallory"), house.ticket(2)
    house.tracker.broken[f"upsert_comment {refused}"] = Unavailable("no network", fix="wait")
    assert [run.tags[tags.PARTITION] for run in house.tick("intake")] == [fine.partition]
    house.tracker.broken.clear()
    assert house.tick("intake") == []
    assert len(house.comments(refused)) == 1


def test_one_ticket_whose_history_is_damaged_does_not_hold_the_others(house: Ticks) -> None:
    key = house.ticket(1)
    journey = Journey()
    journey.start()
    house.replay(journey, key)
    for path in (house.home / "artifacts" / "artifacts" / key.partition / "ticket").iterdir():
        path.chmod(0o644)
        path.write_bytes(b"{}")
    assert isinstance(house.store.objects, DirectoryStore)
    other = house.ticket(2)
    assert [run.tags[tags.PARTITION] for run in house.tick("intake")] == [other.partition]
    house.tracker.asked.clear()
    assert house.tick("intake") == []
    assert house.tracker.asked == ["repositories", "issues_changed_since"]


def test_a_partition_that_never_got_its_run_is_started(house: Ticks) -> None:
    key = house.ticket()
    partitions.add_tickets(house.instance, [key.partition])  # the daemon died before it launched the run
    (run,) = house.tick("intake")
    assert run.tags[tags.CYCLE] == "1"


def test_ten_thousand_known_tickets_with_nothing_new_cost_one_read(
    house: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.ticket()
    house.tick("intake")
    partitions.add_tickets(house.instance, [f"local~demo~shop~{number}" for number in range(2, 10_002)])
    house.tracker.asked.clear()

    def fetch(*_: object, **__: object) -> None:
        raise AssertionError("Dagster's storage was read")

    for name in ("fetch_materializations", "get_runs", "get_run_records", "get_dynamic_partitions"):
        monkeypatch.setattr(type(house.instance), name, fetch)
    assert house.tick("intake") == []
    assert house.tracker.asked == ["repositories", "issues_changed_since"]


# ------------------------------------------------------------------------------------------------------ retries


def waiting_after_failures(house: Ticks) -> TicketKey:
    key = house.ticket()
    journey = Journey()
    journey.crash_at = lambda asset: asset == "plan"
    for _ in range(3):
        journey.run(("ticket", "analysis", "plan"), job="deliver")
    house.replay(journey, key)
    house.tick("intake")
    return key


def test_a_retry_starts_the_run_that_failures_hold(house: Ticks) -> None:
    key = waiting_after_failures(house)
    house.say(key, "/atelier retry")
    (run,) = house.tick("intake")
    assert run.job_name == "deliver"
    assert tags.RETRY in run.tags
    house.cursors.clear()
    assert house.tick("intake") == []
    house.end(run, "failure")
    house.say(key, "me too")
    assert house.tick("intake") == []  # the same retry never starts a second run


@pytest.mark.parametrize("author", ["mallory", "atelier[bot]"])
def test_strangers_and_the_bot_retry_nothing(house: Ticks, author: str) -> None:
    key = waiting_after_failures(house)
    house.say(key, "/atelier retry", author)
    assert house.tick("intake") == []


def test_a_retry_while_a_run_is_active_waits_for_its_end(house: Ticks) -> None:
    key = waiting_after_failures(house)
    active = house.run("local~demo~shop~1")
    house.say(key, "/atelier retry")
    assert house.tick("intake") == []
    assert house.tick("intake") == []
    house.end(active, "failure")
    house.tracker.broken["comments"] = Unavailable("no network", fix="wait")
    assert house.tick("intake") == []
    house.tracker.broken.clear()
    (run,) = house.tick("intake")
    assert run.job_name == "deliver"


def test_a_retry_that_helped_nothing_is_not_remembered_for_later(house: Ticks) -> None:
    key = house.ticket()
    journey = Journey()
    journey.start()
    house.replay(journey, key)
    house.tick("intake")
    house.say(key, "/atelier retry")
    assert house.tick("intake") == []  # the pull request waits for a decision
    known = len(journey.entries) + len(journey.runs)
    journey.decide(Action.APPROVE)
    journey.release()
    journey.follow()
    house.replay(journey, key, start=known)
    house.ticket(state="closed")
    house.say(key, "Done: the change is merged.", "atelier[bot]")
    assert house.tick("intake") == []  # it would have started a second cycle of a merged ticket


def test_a_retry_after_the_end_starts_the_next_cycle(house: Ticks) -> None:
    key = house.ticket()
    journey = Journey()
    journey.start()
    journey.decide(Action.REJECT)
    journey.release()
    journey.follow()
    house.replay(journey, key)
    house.ticket(state="closed")
    assert house.tick("intake") == []
    house.say(key, "/atelier retry please")
    (run,) = house.tick("intake")
    assert (run.job_name, run.tags[tags.CYCLE]) == ("deliver", "2")
    assert tags.BY_HAND in run.tags
