"""Housekeeping: what nobody needs is removed, what stands still is moved on, and one bad case holds nobody up."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.launcher import CheckRunHealthResult, WorkerStatus

from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.errors import Unavailable, WorkshopFailed
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.orchestration import partitions, tags
from atelier_dagster.orchestration.lost_runs import fail_lost_runs
from atelier_dagster.ports import Phase, WorkshopStatus
from tests.support.journey import Journey
from tests.support.ticks import Ticks


def workshop(house: Ticks, name: str, ticket: str, hours: float | None) -> None:
    created = None if hours is None else datetime.now(UTC) - timedelta(hours=hours)
    house.workshops.found[name] = WorkshopStatus(
        name=name, phase=Phase.SUSPENDED, campaign="c", ticket=ticket, workdir="/w", created_at=created
    )


def at_work(house: Ticks, number: int) -> TicketKey:
    key, journey = house.ticket(number), Journey()
    journey.start()
    house.replay(journey, key)
    return key


def ended(house: Ticks, number: int) -> TicketKey:
    key, journey = house.ticket(number), Journey()
    journey.start()
    journey.decide(Action.REJECT)
    journey.release()
    journey.follow()
    house.replay(journey, key)
    return key


def damage(house: Ticks, key: TicketKey) -> None:
    for path in (house.home / "artifacts" / "artifacts" / key.partition / "ticket").iterdir():
        path.chmod(0o644)
        path.write_bytes(b"{}")


def test_only_old_workshops_that_nobody_needs_are_removed(house: Ticks) -> None:
    working, done = at_work(house, 1), ended(house, 2)
    workshop(house, "working", working.partition, 1000)
    workshop(house, "ended-old", done.partition, 73)
    workshop(house, "ended-young", done.partition, 71)
    workshop(house, "stranger-old", "local~demo~shop~99", 73)
    workshop(house, "stranger-young", "local~demo~shop~99", 1)
    workshop(house, "nobody", "", 73)
    workshop(house, "garbage", "../../etc", 73)
    workshop(house, "ageless", done.partition, None)
    house.tick("housekeeping")
    assert set(house.workshops.found) == {"working", "ended-young", "stranger-young", "ageless"}
    house.settings["workshop_ttl_hours"] = 0.5
    house.tick("housekeeping")
    assert set(house.workshops.found) == {"working", "ageless"}


def test_one_ticket_that_cannot_be_read_holds_nobody_up(house: Ticks) -> None:
    damaged = at_work(house, 1)
    damage(house, damaged)
    workshop(house, "a-damaged", damaged.partition, 100)
    workshop(house, "b-stuck", "local~demo~shop~98", 100)
    workshop(house, "c-orphan", "local~demo~shop~99", 100)
    house.workshops.undeletable["b-stuck"] = WorkshopFailed("it does not go", fix="look")
    assert house.tick("housekeeping") == []
    assert set(house.workshops.found) == {"a-damaged", "b-stuck"}


def test_workshops_that_cannot_be_listed_hold_no_ticket_up(house: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    key, journey = house.ticket(), Journey()
    journey.run(("ticket",), job="deliver")
    house.replay(journey, key)
    house.workshops.broken = Unavailable("no workshops", fix="wait")
    later(monkeypatch, 121)
    assert len(house.tick("housekeeping")) == 1


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("sensors.housekeeping.time", SimpleNamespace(time=lambda: time.time() + seconds))


def test_a_ticket_left_standing_is_moved_on_once_and_not_before_its_time(
    house: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, journey = house.ticket(), Journey()
    journey.run(("ticket",), job="deliver")
    house.replay(journey, key)
    assert house.tick("housekeeping") == []
    later(monkeypatch, 121)
    (run,) = house.tick("housekeeping")
    assert run.job_name == "deliver"
    assert house.tick("housekeeping") == []  # it is active
    assert run.tags[tags.AFTER] == house.history(key).runs[-1].run_id


def test_tickets_that_wait_for_a_human_or_have_ended_are_left_alone(
    house: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work(house, 1)
    ended(house, 2)
    later(monkeypatch, 100_000)
    assert house.tick("housekeeping") == []


def test_every_ticket_gets_its_turn_and_a_tick_stays_small(house: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions.add_tickets(house.instance, [f"local~demo~shop~{number}" for number in range(1, 61)])
    seen: list[str] = []

    def active(_: object, partition: str) -> list[object]:
        seen.append(partition)
        return [partition]

    monkeypatch.setattr("sensors.housekeeping.active_runs", active)
    sizes: list[int] = []
    for _ in range(4):
        before = len(seen)
        house.tick("housekeeping")
        sizes.append(len(seen) - before)
    assert sizes == [25, 25, 10, 25]
    assert set(seen[:60]) == set(house.instance.get_dynamic_partitions(partitions.TICKETS))


# ----------------------------------------------------------------------------------------------------- lost runs


class Launcher:
    """Says of each run what a test wants."""

    supports_check_run_worker_health = True

    def __init__(self, status: WorkerStatus) -> None:
        self.status = status
        self.asked = 0

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        self.asked += 1
        return CheckRunHealthResult(self.status, "killed")


def started(house: Ticks) -> dg.DagsterRun:
    run = house.run("local~demo~shop~1")
    for kind in (dg.DagsterEventType.RUN_STARTING, dg.DagsterEventType.RUN_START):
        event = dg.DagsterEvent(event_type_value=kind.value, job_name=run.job_name, message="")
        house.instance.report_dagster_event(event, run_id=run.run_id)
    return run


@pytest.mark.parametrize(
    ("status", "lost"),
    [(WorkerStatus.RUNNING, 0), (WorkerStatus.FAILED, 1), (WorkerStatus.NOT_FOUND, 1), (WorkerStatus.UNKNOWN, 0)],
)
def test_a_run_whose_process_is_gone_is_failed(
    house: Ticks, monkeypatch: pytest.MonkeyPatch, status: WorkerStatus, lost: int
) -> None:
    run, launcher = started(house), Launcher(status)
    monkeypatch.setattr(type(house.instance), "run_launcher", launcher)
    assert fail_lost_runs(house.instance) == []
    assert launcher.asked == 0  # too young: it may not have a process yet
    assert len(fail_lost_runs(house.instance, grace_seconds=0)) == lost
    found = house.instance.get_run_by_id(run.run_id)
    assert found
    assert found.is_finished == bool(lost)


def test_a_launcher_that_cannot_tell_is_asked_nothing(house: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    started(house)
    launcher: Any = Launcher(WorkerStatus.FAILED)
    launcher.supports_check_run_worker_health = False
    monkeypatch.setattr(type(house.instance), "run_launcher", launcher)
    assert not fail_lost_runs(house.instance, grace_seconds=0)


def test_what_ended_or_waits_in_the_queue_is_never_lost(house: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    house.ended("local~demo~shop~1")
    house.run("local~demo~shop~1")
    monkeypatch.setattr(type(house.instance), "run_launcher", Launcher(WorkerStatus.NOT_FOUND))
    assert not fail_lost_runs(house.instance, grace_seconds=0)
