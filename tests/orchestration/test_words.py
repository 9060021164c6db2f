"""What people said and are told: decisions fetched from their source, retries, plans, and news of failures."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from atelier_dagster.factory.approval import Action, DecisionSource, HumanDecision
from atelier_dagster.factory.errors import InvalidInput, NotFound, Unavailable
from atelier_dagster.factory.routing import WaitKind, WaitStep
from atelier_dagster.factory.ticket import RepoRef
from atelier_dagster.orchestration.decisions import fetch_decision, plan_approver, retry_asked
from atelier_dagster.orchestration.news import failed_step, tell_failure, tell_waiting
from tests.support.lines import Line
from tests.support.ticks import StandInForge, Ticks

REPO = RepoRef(tracker="local", owner="demo", name="shop")
ALLOWED = frozenset({"alice"})
BOT = "atelier[bot]"
LOG = logging.getLogger("test")


def fetch(forge: StandInForge, source: str, decision_id: str) -> HumanDecision:
    as_forge: Any = forge
    return asyncio.run(fetch_decision(as_forge, REPO, 1, source, decision_id))


def test_a_decision_is_what_its_source_has_now() -> None:
    source = DecisionSource.COMMENT
    held = HumanDecision(source=source, id="7", actor="alice", action=Action.REJECT, head="")
    forge = StandInForge({1: [held]})
    assert fetch(forge, "comment", "7") == held
    for claimed in (("comment", "8"), ("cli", "7"), ("review", "7"), ("", ""), ("nonsense", "7")):
        with pytest.raises(NotFound):
            fetch(forge, *claimed)


def test_a_decision_of_the_ui_is_unauthenticated_and_names_its_head() -> None:
    made = fetch(StandInForge(), "ui", f" approve {'a' * 40} ")
    assert (made.actor, made.action, made.head) == ("unauthenticated", Action.APPROVE, "a" * 40)
    assert not made.may_decide
    for text in ("", "merge it", "APPROVE x", "approve\nreject"):
        with pytest.raises(InvalidInput):
            fetch(StandInForge(), "ui", text)


@pytest.mark.parametrize(
    ("author", "body", "counts"),
    [
        ("alice", "/atelier retry", True),
        ("bob", "please\n/atelier retry now", True),  # may write
        ("mallory", "/atelier retry", False),
        (BOT, "/atelier retry", False),
        ("alice", "> /atelier retry", False),
        ("alice", "```\n/atelier retry\n```", False),
        ("alice", "/atelier approve", False),
    ],
)
def test_a_retry_counts_from_those_who_may_give_orders(house: Ticks, author: str, body: str, counts: bool) -> None:
    key = house.ticket()
    house.say(key, body, author)
    found = asyncio.run(retry_asked(house.tracker, key, ALLOWED, BOT))
    assert (found is not None) == counts


def test_the_newest_retry_counts(house: Ticks) -> None:
    key = house.ticket()
    for body in ("/atelier retry one", "/atelier retry two", "thanks"):
        house.say(key, body, "alice")
    found = asyncio.run(retry_asked(house.tracker, key, ALLOWED, BOT))
    assert found
    assert found.body.strip() == "/atelier retry two"


@pytest.mark.parametrize(
    ("author", "body", "who"),
    [
        ("alice", "/atelier approve abcdef1", "alice"),
        ("alice", f"/atelier approve abcdef1{'0' * 57}", "alice"),
        ("alice", "/atelier approve abcdef", ""),
        ("alice", "/atelier approve", ""),
        ("alice", "/atelier approve abcdef2", ""),
        ("alice", "/atelier reject abcdef1", ""),
        ("mallory", "/atelier approve abcdef1", ""),
        (BOT, "/atelier approve abcdef1", ""),
    ],
)
def test_a_plan_is_approved_by_its_hash_alone(house: Ticks, author: str, body: str, who: str) -> None:
    key = house.ticket()
    house.say(key, body, author)
    assert asyncio.run(plan_approver(house.tracker, key, f"abcdef1{'0' * 57}", ALLOWED, BOT)) == who


# --------------------------------------------------------------------------------------------------------- news


def test_a_failure_names_its_step_and_keeps_its_words_harmless(house: Ticks) -> None:
    key = house.ticket()
    line = Line(house, key.partition)
    line.error = Unavailable("```\n@everyone <img src=x>", fix="wait")
    result = line.run("ticket", "analysis")
    run = house.instance.get_run_by_id(result.run_id)
    assert run
    step, message = failed_step(house.instance, run)
    assert step == "analysis"
    assert message.startswith("[UNAVAILABLE]")
    asyncio.run(tell_failure(house.instance, house.tracker, run, LOG))
    (told,) = house.comments(key)
    assert "failed in the step `analysis`" in told
    assert "````text\n[UNAVAILABLE] ```" in told


def test_a_process_that_ended_without_a_word_is_told_as_such(house: Ticks) -> None:
    run = house.ended("local~demo~shop~1", "failure")
    assert failed_step(house.instance, run) == ("", "the process of the run ended without a word")


@pytest.mark.parametrize("kind", WaitKind)
def test_every_wait_is_told_by_somebody(house: Ticks, kind: WaitKind) -> None:
    key = house.ticket()
    asyncio.run(tell_waiting(house.tracker, key.partition, WaitStep(kind=kind, reason="so"), LOG))
    by_a_step = kind in {WaitKind.APPROVAL, WaitKind.PLAN_REVIEW, WaitKind.NOT_STARTED}
    assert len(house.comments(key)) == (0 if by_a_step else 1)


@pytest.mark.parametrize("partition", ["local~demo~shop~1", "made by hand", "local~demo~gone~7"])
def test_not_being_able_to_tell_raises_nothing(house: Ticks, partition: str) -> None:
    house.ticket()
    house.tracker.broken["upsert_comment local/demo/shop#1"] = Unavailable("no network", fix="wait")
    run = house.ended(partition, "failure")
    asyncio.run(tell_failure(house.instance, house.tracker, run, LOG))
    asyncio.run(tell_waiting(house.tracker, partition, WaitStep(kind=WaitKind.BUDGET, reason="so"), LOG))
