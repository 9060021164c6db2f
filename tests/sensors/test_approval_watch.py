"""Approval: every new decision of a person is judged once, about the pull request that waits, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from atelier_dagster.factory.approval import Action, DecisionSource, HumanDecision
from atelier_dagster.factory.errors import NotFound, Unavailable
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.orchestration import partitions, tags
from tests.support.journey import Journey
from tests.support.ticks import Ticks


def decision(number: int, actor: str = "alice", action: Action = Action.APPROVE, **fields: Any) -> HumanDecision:
    source = DecisionSource.COMMENT
    return HumanDecision(source=source, id=str(number), actor=actor, action=action, head="a" * 40, **fields)


def opened(house: Ticks, number: int = 1) -> tuple[Journey, TicketKey]:
    """A ticket whose pull request 1 waits."""
    key = house.ticket(number)
    journey = Journey()
    journey.start()
    house.replay(journey, key)
    assert house.history(key).current("pull_request")
    return journey, key


def passed_on(house: Ticks) -> list[tuple[str, str]]:
    return [(run.tags[tags.PARTITION], run.tags[tags.DECISION]) for run in house.tick("approval_watch")]


def test_a_new_decision_is_passed_on_once_by_its_source_and_id_alone(house: Ticks) -> None:
    _, key = opened(house)
    assert house.tick("approval_watch") == []
    house.forge.made[1] = [decision(7, reason="secret words")]
    (run,) = house.tick("approval_watch")
    pull_request = house.history(key).current("pull_request")
    assert pull_request
    assert run.job_name == "release"
    assert run.tags[tags.DECISION] == "comment:7"
    assert run.tags[tags.SUBJECT] == pull_request.sha256
    assert "secret words" not in str(run.tags)
    house.end(run)
    assert house.tick("approval_watch") == []
    house.cursors.clear()
    assert house.tick("approval_watch") == []


def test_our_own_bot_decides_nothing(house: Ticks) -> None:
    opened(house)
    house.forge.made[1] = [decision(1, "atelier[bot]"), decision(2, "ci", is_bot=True)]
    assert house.tick("approval_watch") == []


def test_the_newest_of_several_decisions_counts(house: Ticks) -> None:
    _, key = opened(house)
    house.forge.made[1] = [decision(1), decision(2, action=Action.REJECT), decision(3, "atelier[bot]")]
    (run,) = house.tick("approval_watch")
    assert run.tags[tags.DECISION] == "comment:2"
    house.end(run)
    assert passed_on(house) == []
    assert key.partition in str(house.cursors["approval_watch"])


def test_a_stranger_never_hides_the_decision_of_somebody_who_may_decide(house: Ticks) -> None:
    opened(house)
    house.forge.made[1] = [decision(1), decision(2, "mallory")]
    (run,) = house.tick("approval_watch")
    assert run.tags[tags.DECISION] == "comment:1"
    house.end(run)
    assert [name for _, name in passed_on(house)] == ["comment:2"]  # is told why it does not count


def test_a_decision_while_a_run_is_active_waits_for_its_end(house: Ticks) -> None:
    _, key = opened(house)
    active = house.run(key.partition)
    house.forge.made[1] = [decision(1)]
    assert passed_on(house) == []
    house.end(active)
    assert passed_on(house) == [(key.partition, "comment:1")]


def test_a_decision_that_the_command_line_passed_on_starts_nothing_more(house: Ticks) -> None:
    _, key = opened(house)
    pull_request = house.history(key).current("pull_request")
    assert pull_request
    marks = {tags.DECISION: "comment:1", tags.SUBJECT: pull_request.sha256}
    house.end(house.run(key.partition, "release", marks))
    house.forge.made[1] = [decision(1)]
    assert passed_on(house) == []


def test_no_decision_is_taken_on_a_pull_request_that_is_being_made_anew(house: Ticks) -> None:
    journey, key = opened(house)
    known = len(journey.entries) + len(journey.runs)
    assert passed_on(house) == []
    journey.said.body = "edited"
    journey.run(("ticket",))
    house.replay(journey, key, start=known)
    house.forge.made[1] = [decision(1)]
    assert passed_on(house) == []
    known = len(journey.entries) + len(journey.runs)
    journey.follow()
    house.replay(journey, key, start=known)
    assert passed_on(house) == [(key.partition, "comment:1")]  # the run itself judges which head it names


def test_an_ended_ticket_is_not_watched_any_more(house: Ticks) -> None:
    journey, key = opened(house)
    house.tick("approval_watch")
    known = len(journey.entries) + len(journey.runs)
    journey.decide(Action.REJECT)
    journey.release()
    journey.follow()
    house.replay(journey, key, start=known)
    house.forge.made[1] = [decision(1)]
    assert passed_on(house) == []
    assert house.forge.asked == 1
    house.cursors.clear()
    assert passed_on(house) == []
    assert house.forge.asked == 1


def test_the_second_cycle_is_watched_even_if_all_of_it_is_news_at_once(house: Ticks) -> None:
    key, journey = house.ticket(), Journey()
    journey.start()
    journey.decide(Action.REJECT)
    journey.release()
    journey.follow()
    journey.cycle = 2
    journey.start()
    house.replay(journey, key)
    house.forge.made[1] = [decision(1)]
    assert passed_on(house) == [(key.partition, "comment:1")]


def test_two_tickets_are_watched_apart(house: Ticks) -> None:
    _, first = opened(house, 1)
    _, second = opened(house, 2)
    house.forge.made[1] = [decision(1)]
    assert sorted(passed_on(house)) == [(first.partition, "comment:1"), (second.partition, "comment:1")]


def test_a_failed_read_is_no_decision(house: Ticks) -> None:
    _, key = opened(house)
    house.forge.made[1] = [decision(1)]
    for error in (Unavailable("no network", fix="wait"), NotFound("no such pull request", fix="look")):
        house.forge.broken = error
        assert passed_on(house) == []
    house.forge.broken = None
    assert passed_on(house) == [(key.partition, "comment:1")]


@pytest.mark.parametrize("version", ["", "f" * 64, "../../etc/passwd", "x" * 64])
def test_what_is_reported_from_outside_takes_no_ticket_out_of_sight(house: Ticks, version: str) -> None:
    _, key = opened(house)
    house.tick("approval_watch")
    house.report("pull_request", key.partition, version)
    house.report("outcome", key.partition, version)
    house.report("pull_request", "no ticket", version)
    house.forge.made[1] = [decision(1)]
    assert passed_on(house) == [(key.partition, "comment:1")]


def test_a_store_that_cannot_be_read_loses_no_ticket(house: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    _, key = opened(house)
    house.forge.made[1] = [decision(1)]

    async def get(*_: object) -> bytes:
        raise Unavailable("no store", fix="wait")

    with monkeypatch.context() as broken:
        broken.setattr("atelier_dagster.artifacts.DirectoryStore.get", get)
        assert passed_on(house) == []
        assert "no store" in str(house.skipped)
    assert passed_on(house) == [(key.partition, "comment:1")]


# -------------------------------------------------------------------------------------------------------- plans


def planned(house: Ticks) -> tuple[Journey, TicketKey, str]:
    house.settings["plan_review"] = "human"
    key = house.ticket()
    journey = Journey()
    journey.policy = journey.policy.model_copy(update={"plan_review": "human"})
    journey.start()
    house.replay(journey, key)
    plan = house.history(key).current("plan")
    assert plan
    return journey, key, plan.sha256


def test_a_plan_goes_on_when_somebody_allowed_names_it(house: Ticks) -> None:
    _, key, sha = planned(house)
    assert house.tick("approval_watch") == []
    house.say(key, f"/atelier approve {sha[:12]}", "mallory")
    house.say(key, "/atelier approve", "alice")
    house.say(key, f"/atelier approve {'0' * 12}", "alice")
    assert house.tick("approval_watch") == []
    house.say(key, f"/atelier approve {sha[:12]}", "alice")
    (run,) = house.tick("approval_watch")
    assert run.job_name == "deliver"
    assert {"approved_plan", "pull_request"} <= {asset.path[-1] for asset in run.asset_selection or ()}
    assert {"ticket", "plan"}.isdisjoint({asset.path[-1] for asset in run.asset_selection or ()})
    house.end(run)
    assert house.tick("approval_watch") == []


def test_a_second_plan_can_be_approved_after_the_first(house: Ticks) -> None:
    journey, key, sha = planned(house)
    house.say(key, f"/atelier approve {sha[:12]}", "alice")
    (run,) = house.tick("approval_watch")
    house.end(run)
    known = len(journey.entries) + len(journey.runs)
    journey.said.body = "edited"
    journey.start()
    house.replay(journey, key, start=known)
    plan = house.history(key).current("plan")
    assert plan
    assert plan.sha256 != sha
    assert house.tick("approval_watch") == []
    house.say(key, f"/atelier approve {plan.sha256[:12]}", "alice")
    assert len(house.tick("approval_watch")) == 1


def test_a_pull_request_is_watched_even_if_its_plan_is_news_at_the_same_time(house: Ticks) -> None:
    journey, key, _ = planned(house)
    known = len(journey.entries) + len(journey.runs)
    journey.said.plan_approved = True
    journey.run(("approved_plan",))
    journey.follow()
    house.replay(journey, key, start=known)
    house.forge.made[1] = [decision(1)]
    assert passed_on(house) == [(key.partition, "comment:1")]


def test_nothing_is_read_where_nothing_waits(house: Ticks) -> None:
    partitions.add_tickets(house.instance, [f"local~demo~shop~{number}" for number in range(1, 2000)])
    assert house.tick("approval_watch") == []
    assert house.forge.asked == 0
    assert house.tracker.asked == []
