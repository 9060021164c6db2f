"""Assets in process, with stand-ins for what is outside: the end of a cycle, and the gate of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from atelier_dagster.definitions import build_defs
from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.change import Ending, Outcome
from atelier_dagster.factory.plan import ApprovedPlan
from atelier_dagster.factory.ticket import TicketKey, workshop_name
from atelier_dagster.orchestration import tags
from atelier_dagster.ports import Phase, WorkshopStatus
from atelier_dagster.settings import Settings
from tests.support.journey import Journey
from tests.support.ticks import Ticks, ticks

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")


@pytest.fixture
def house() -> Iterator[Ticks]:
    with ticks(approvers=("alice",), bot="atelier[bot]") as made:
        yield made


def execute(house: Ticks, key: TicketKey, job: str, *assets: str, **marks: str) -> Any:
    """Some assets of a job, as one run, with everything outside replaced."""
    overrides = {name: made for name, made in house.resources().items() if name in ("tracker", "forge", "workshops")}
    defs = build_defs(overrides, Settings(home=house.home, **house.settings))
    return defs.resolve_job_def(job).execute_in_process(
        instance=house.instance,
        partition_key=key.partition,
        asset_selection=[dg.AssetKey(asset) for asset in assets],
        tags=marks,
        raise_on_error=False,
    )


def workshop(house: Ticks, name: str, key: TicketKey) -> None:
    house.workshops.found[name] = WorkshopStatus(
        name=name, phase=Phase.RUNNING, campaign="c", ticket=key.partition, workdir="/w"
    )


def happened(house: Ticks, *actions: Action) -> TicketKey:
    key, journey = house.ticket(), Journey()
    journey.start()
    for action in actions:
        journey.decide(action)
        journey.release()
    house.replay(journey, key)
    return key


def test_the_end_of_a_merged_ticket_is_told_and_only_qa_s_workshop_stays(house: Ticks) -> None:
    key = happened(house, Action.APPROVE)
    kept = workshop_name(key, 1, "qa")
    for name in ("pm-a", "pm-b", kept):
        workshop(house, name, key)
    assert execute(house, key, "close", "outcome").success
    outcome = house.history(key).value("outcome", Outcome)
    assert outcome
    assert (outcome.ending, set(outcome.workshops_removed)) == (Ending.MERGED, {"pm-a", "pm-b"})
    assert set(house.workshops.found) == {kept}
    assert {"ticket", "pull_request", "merge", "qa_report"} <= set(outcome.evidence)
    (told,) = house.comments(key)
    assert "the change is merged" in told
    assert "state: closed" in (house.home / "forge/demo/shop/tickets/1.md").read_text()


def test_a_ticket_that_lost_its_label_stays_open(house: Ticks) -> None:
    key = happened(house)
    marks = {tags.REASON: "the ticket lost its label atelier", tags.ENDING: "cancelled"}
    assert execute(house, key, "close", "outcome", **marks).success
    outcome = house.history(key).value("outcome", Outcome)
    assert outcome
    assert (outcome.ending, outcome.reason) == (Ending.CANCELLED, "the ticket lost its label atelier")
    assert "state: closed" not in (house.home / "forge/demo/shop/tickets/1.md").read_text()


def test_an_end_that_is_repeated_changes_nothing(house: Ticks) -> None:
    key = happened(house, Action.APPROVE)
    for _ in range(2):
        assert execute(house, key, "close", "outcome").success
    assert len({entry.sha256 for entry in house.history(key).all("outcome")}) == 1
    assert len(house.comments(key)) == 1


def test_the_end_of_a_ticket_that_was_never_read_is_an_error_and_closes_nothing(house: Ticks) -> None:
    key = house.ticket()
    house.instance.add_dynamic_partitions("tickets", [key.partition])
    result = execute(house, key, "close", "outcome")
    assert not result.success
    assert house.comments(key) == []


def planned(house: Ticks) -> TicketKey:
    house.settings["plan_review"] = "human"
    key, journey = house.ticket(), Journey()
    journey.policy = journey.policy.model_copy(update={"plan_review": "human"})
    journey.start()
    house.replay(journey, key)
    return key


def test_a_plan_waits_for_a_person_and_says_how_to_approve_it(house: Ticks) -> None:
    key = planned(house)
    assert execute(house, key, "deliver", "approved_plan").success
    plan = house.history(key).current("plan")
    assert plan
    assert house.history(key).current("approved_plan") is None
    (told,) = house.comments(key)
    assert f"/atelier approve {plan.sha256[:12]}" in told
    house.say(key, f"/atelier approve {plan.sha256[:12]}", "alice")
    assert execute(house, key, "deliver", "approved_plan").success
    approved = house.history(key).value("approved_plan", ApprovedPlan)
    assert approved
    assert approved.approved_by == "alice"
