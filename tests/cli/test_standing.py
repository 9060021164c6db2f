"""Where tickets stand, and what a person's submitting makes of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from atelier_dagster.cli.standing import State, TicketStanding
from atelier_dagster.cli.status import detail, overview
from atelier_dagster.factory.budgets import Policy
from atelier_dagster.factory.change import Ending
from atelier_dagster.factory.lineage import Artifact, EndedRun, Entry, History
from atelier_dagster.factory.routing import DoneStep, RunStep, WaitKind, WaitStep
from atelier_dagster.factory.ticket import Ticket, TicketKey
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.by_hand import order_for, step_by_hand
from tests.support.program import Atelier
from tests.support.recorded import Recorder, ticket

KEY = TicketKey.parse("local/acme/shop#1")


def test_nothing_taken_in_is_an_empty_list(atelier: Atelier) -> None:
    assert atelier("status", "--json").json == {"tickets": []}
    assert "no ticket has been taken in" in atelier("status").err


def test_an_unknown_ticket_fails(home: Path, atelier: Atelier) -> None:
    Recorder(home, KEY)
    ran = atelier("status", "local/acme/shop#2")
    assert ran.code == 1
    assert "[NOT_FOUND]" in ran.err


def test_the_schema_of_the_json_is_stable(home: Path, atelier: Atelier) -> None:
    recorder = Recorder(home, KEY)
    recorder.record("ticket", ticket(KEY, "Sort [bold]it[/]"), **{"tokens in": 3, "tokens out": 4, "model calls": 1})
    (found,) = atelier("status", "--json").json["tickets"]
    assert set(found) == set(TicketStanding.model_fields)
    assert (found["ticket"], found["state"], found["next_job"]) == (str(KEY), "due", "deliver")
    assert (found["tokens_in"], found["tokens_out"], found["cost_usd"]) == (3, 4, None)
    assert found["title"] == "Sort [bold]it[/]"
    assert atelier("status", str(KEY), "--json").json["tickets"] == [found]
    assert "Sort [bold]it[/]" in atelier("status").out
    assert "Sort [bold]it[/]" in atelier("status", str(KEY)).out


def test_one_damaged_ticket_hides_no_other(home: Path, atelier: Atelier) -> None:
    other = TicketKey.parse("local/acme/shop#2")
    Recorder(home, KEY).record("ticket", ticket(KEY))
    Recorder(home, other).record("ticket", ticket(other))
    (stored,) = (home / "artifacts").rglob(f"{KEY.partition}/ticket/*.json")
    stored.chmod(0o644)
    stored.write_bytes(b"{}")
    found = atelier("status", "--json").json
    assert [each["ticket"] for each in found["tickets"]] == [str(other)]
    assert "CORRUPT_ARTIFACT" in found["unreadable"][KEY.partition]
    assert atelier("status", str(KEY)).code == 1


@pytest.mark.parametrize("state", ["running", "waiting", "ended", "due", "not_started"])
def test_every_state_can_be_shown(state: State) -> None:
    standing = TicketStanding(ticket=str(KEY), partition=KEY.partition, state=state, concerns=("[Tests] [red]x",))
    assert overview([standing])
    assert detail(standing)


def history(*runs: EndedRun) -> History:
    artifact = Artifact[Ticket](asset="ticket", ticket=KEY.partition, cycle=2, value=ticket(KEY))
    return History(ticket=KEY.partition, entries=(Entry.of(artifact, 1),), runs=runs)


def failed(number: int) -> EndedRun:
    return EndedRun(run_id=f"r{number}", job="deliver", status="failure", seq=number + 1, error="X")


def test_neither_failures_nor_back_off_hold_a_person() -> None:
    step = step_by_hand(history(*(failed(n) for n in range(1, 6))), Policy())
    assert isinstance(step, RunStep)
    assert step.delay_seconds == 0


def test_a_cancelled_ticket_goes_on() -> None:
    cancelled = EndedRun(run_id="r", job="deliver", status="cancelled", seq=9)
    assert isinstance(step_by_hand(history(cancelled), Policy()), RunStep)


def test_an_ended_ticket_starts_its_next_cycle() -> None:
    order = order_for(DoneStep(ending=Ending.MERGED, reason=""), history(), "")
    assert order is not None
    assert (order.job, order.tags[tags.CYCLE]) == ("deliver", "3")


def test_a_ticket_that_waits_for_a_decision_is_not_restarted() -> None:
    assert order_for(WaitStep(kind=WaitKind.APPROVAL, reason=""), history(), "") is None


def test_a_run_that_needs_a_decision_is_not_started_without_one() -> None:
    step = RunStep(job="release", assets=("approval", "merge"), reason="x")
    assert order_for(step, history(), "") is None
    order = order_for(step, history(), "cli:cli-1")
    assert order is not None
    assert order.run_config == {"ops": {"approval": {"config": {"source": "cli", "id": "cli-1"}}}}


def test_a_ticket_read_again_stays_in_its_cycle() -> None:
    order = order_for(RunStep(job="deliver", assets=("ticket",), reason="x"), history(), "")
    assert order is not None
    assert order.tags[tags.CYCLE] == "2"


@pytest.mark.parametrize(
    "kind", [kind for kind in WaitKind if kind not in (WaitKind.APPROVAL, WaitKind.DECISION_REFUSED)]
)
def test_every_other_wait_can_be_ended_by_hand(kind: WaitKind) -> None:
    order = order_for(WaitStep(kind=kind, reason=""), history(), "cli:1")
    assert order is not None
    assert order.assets


def test_submitting_without_a_webserver_says_how_to_start_it(home: Path, atelier: Atelier, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "shop")], check=True)
    atelier("init", "shop", "--as", "acme/shop")
    atelier("ticket", "new", "acme/shop", "--title", "a")
    ran = atelier("submit", str(KEY))
    assert ran.code == 1
    assert "[UNAVAILABLE]" in ran.err
    assert "atelier dev" in ran.err


def test_submitting_what_is_no_ticket_makes_no_partition(atelier: Atelier) -> None:
    ran = atelier("submit", "local/acme/none#7")
    assert ran.code == 1
    assert "[NOT_FOUND]" in ran.err
