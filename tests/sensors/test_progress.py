"""Progress: after each ended run the ticket goes on, waits, or is told about; whatever the job and however many."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.errors import Unavailable
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.orchestration import tags
from tests.support.journey import Journey, refuse
from tests.support.ticks import Status, Ticks


def stopped_before(house: Ticks, asset: str, number: int = 1) -> tuple[Journey, TicketKey]:
    """A ticket of which everything before `asset` is made, by a run that has not ended yet."""
    key = house.ticket(number)
    journey = Journey()
    journey.crash_at = lambda name: name == asset
    journey.run(("ticket", "analysis", "plan", "greenfield_spec", asset), job="deliver")
    journey.runs.clear()
    journey.crash_at = lambda _: False
    house.replay(journey, key)
    return journey, key


def assets_of(run: object) -> set[str]:
    return {asset.path[-1] for asset in getattr(run, "asset_selection", None) or ()}


def forward(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the sensor's clock, and nobody else's, be that far ahead."""
    monkeypatch.setattr("sensors.progress.time", SimpleNamespace(time=lambda: time.time() + seconds))


@pytest.mark.parametrize("job", ["deliver", "__ASSET_JOB"])
def test_what_is_missing_follows_an_ended_run_of_any_job(house: Ticks, job: str) -> None:
    _, key = stopped_before(house, "plan")
    ended = house.ended(key.partition, job=job)
    (run,) = house.tick("progress")
    assert run.job_name == "deliver"
    assert {"plan", "pull_request"} <= assets_of(run)
    assert "analysis" not in assets_of(run)
    assert run.tags[tags.AFTER] == ended.run_id
    assert house.tick("progress") == []


def test_nothing_follows_while_another_run_is_active_and_its_end_brings_it_back(house: Ticks) -> None:
    _, key = stopped_before(house, "plan")
    house.ended(key.partition)
    active = house.run(key.partition)
    assert house.tick("progress") == []
    assert house.tick("progress") == []
    house.end(active)
    (run,) = house.tick("progress")
    assert run.tags[tags.AFTER] == active.run_id


def test_many_runs_that_ended_since_are_taken_up_in_one_tick(house: Ticks) -> None:
    keys = [stopped_before(house, "analysis", number)[1] for number in range(1, 8)]
    for key in keys:
        house.ended(key.partition)
    runs = house.tick("progress")
    assert sorted(run.tags[tags.PARTITION] for run in runs) == sorted(key.partition for key in keys)


def test_several_ended_runs_of_one_ticket_are_followed_once_after_the_last(house: Ticks) -> None:
    _, key = stopped_before(house, "plan")
    house.ended(key.partition)
    house.ended(key.partition, job="__ASSET_JOB")
    last = house.ended(key.partition, "success")
    (run,) = house.tick("progress")
    assert run.tags[tags.AFTER] == last.run_id


def test_a_failure_is_told_and_tried_again_after_a_pause(house: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    _, key = stopped_before(house, "plan")
    house.ended(key.partition, "failure", error="UNAVAILABLE")
    assert house.tick("progress") == []
    (told,) = house.comments(key)
    assert "failed outside of a step" in told
    assert house.tick("progress") == []
    forward(monkeypatch, 11)
    (run,) = house.tick("progress")
    assert "plan" in assets_of(run)
    assert house.tick("progress") == []


def test_three_failures_without_progress_wait_for_a_human_and_say_so_once(
    house: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = stopped_before(house, "plan")
    house.ended(key.partition)
    for hours in (1, 2, 3):
        (run,) = house.tick("progress")
        house.end(run, "failure", "UNAVAILABLE")
        assert house.tick("progress") == []
        forward(monkeypatch, hours * 3600)
    for _ in range(3):
        assert house.tick("progress") == []
    comments = house.comments(key)
    assert len(comments) == 2
    assert [text for text in comments if "Runs keep failing without progress" in text]


def test_a_cancelled_run_waits_for_its_operator(house: Ticks) -> None:
    _, key = stopped_before(house, "plan")
    house.ended(key.partition, "cancelled")
    assert house.tick("progress") == []
    (told,) = house.comments(key)
    assert "An operator cancelled the last run" in told


@pytest.mark.parametrize("code", ["NOTHING_CHANGED", "MODEL_BUDGET"])
def test_what_only_a_human_mends_is_not_tried_again(house: Ticks, code: str) -> None:
    _, key = stopped_before(house, "plan")
    house.ended(key.partition, "failure", error=code)
    assert house.tick("progress") == []
    assert len(house.comments(key)) == 2


@pytest.mark.parametrize("status", ["success", "failure", "cancelled"])
def test_not_being_able_to_comment_stops_nothing(house: Ticks, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    _, key = stopped_before(house, "plan")
    house.tracker.broken["upsert_comment"] = Unavailable("no network", fix="wait")
    house.ended(key.partition, status)
    first = house.tick("progress")
    forward(monkeypatch, 11)
    second = house.tick("progress")
    assert len(first + second) == (0 if status == "cancelled" else 1)


def test_a_history_that_cannot_be_read_now_is_read_again_later(house: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    _, key = stopped_before(house, "plan")
    house.ended(key.partition)

    async def get(*_: object) -> bytes:
        raise Unavailable("no store", fix="wait")

    with monkeypatch.context() as broken:
        broken.setattr("atelier_dagster.artifacts.DirectoryStore.get", get)
        assert house.tick("progress") == []
    assert house.tick("progress") == []
    forward(monkeypatch, 61)
    assert len(house.tick("progress")) == 1


@pytest.mark.parametrize("status", ["success", "failure", "cancelled"])
def test_runs_of_what_is_no_ticket_are_no_ones_business(house: Ticks, status: Status) -> None:
    _, key = stopped_before(house, "plan")
    house.instance.add_dynamic_partitions("tickets", ["made by hand"])
    house.ended("made by hand", status)
    house.ended(key.partition)
    assert [run.tags[tags.PARTITION] for run in house.tick("progress")] == [key.partition]


def test_a_pull_request_waits_silently_and_a_decision_that_does_not_count_is_told_about(house: Ticks) -> None:
    key = house.ticket()
    journey = Journey()
    journey.start()
    house.replay(journey, key)
    assert house.tick("progress") == []
    assert house.comments(key) == []
    known = len(journey.entries) + len(journey.runs)
    journey.decide(Action.APPROVE, actor="mallory")
    journey.release()
    house.replay(journey, key, start=known)
    assert house.tick("progress") == []
    (told,) = house.comments(key)
    assert "does not count" in told


def test_a_refused_plan_is_made_anew_and_an_approved_change_is_closed_after_qa(house: Ticks) -> None:
    key = house.ticket()
    journey = Journey()
    journey.said.architect = refuse("split it")
    journey.run(("ticket", "analysis", "plan", "greenfield_spec", "architecture_review"), job="deliver")
    house.replay(journey, key)
    (run,) = house.tick("progress")
    assert {"plan", "architecture_review", "pull_request"} <= assets_of(run)
    other, done = house.ticket(2), Journey()
    done.start()
    done.decide(Action.APPROVE)
    done.release()
    house.replay(done, other)
    (closing,) = house.tick("progress")
    assert closing.job_name == "close"


def test_nothing_is_read_while_nothing_ends(house: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    _, key = stopped_before(house, "plan")
    house.ended(key.partition)
    house.tick("progress")

    def fetch(*_: object, **__: object) -> None:
        raise AssertionError("Dagster's storage was read")

    for name in ("fetch_materializations", "get_runs", "get_run_records"):
        monkeypatch.setattr(type(house.instance), name, fetch)
    assert house.tick("progress") == []
