"""A run killed at any of its effects on the outside world: the journey ends as if nothing had happened.

One journey is recorded, which numbers its outside effects and the moments inside each. Then every effect is died at,
before, during and after it, spread over journeys that each go on to their end. Before its materialization and after
it are such points of every asset.

What is not repeated: an agent's execution, a model's answer that was kept. What cannot be avoided, and is counted: a
question that was on its way to the model when the process died is paid for and lost, because only the answer's record
makes it findable, and no OpenAI-compatible endpoint takes an idempotency key for a chat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from atelier_dagster.factory.routing import DoneStep
from atelier_dagster.knowledge import LanceKnowledge
from tests.support.crashing import Gauntlet, Journey, Plan, crashes_of
from tests.support.effects import KINDS, Crash, Point
from tests.support.floor import floor
from tests.support.model import model_server

pytestmark = [pytest.mark.journey, pytest.mark.timeout(3600), pytest.mark.long]


@dataclass(frozen=True)
class Report:
    """What was recorded and what became of the crashes."""

    points: dict[Point, int]
    crashes: list[Crash]
    journeys: list[Journey]

    @property
    def fired(self) -> set[Crash]:
        """Crashes that happened."""
        return {crash for journey in self.journeys for crash in journey.fired}


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    """The recording, and all journeys with crashes."""
    with model_server() as model, floor(model.url) as running:
        key = running.ticket("recorded", "Add a feature to recorded")
        assert running.start(key).ok
        assert running.release(key, running.decide(key)).ok
        assert isinstance(running.settle(key), DoneStep)
        points = dict(running.points(key))
        crashes = crashes_of(points)
        journeys = Gauntlet(running, model, Plan.of(crashes)).run()
        yield Report(points, crashes, list(journeys))


def test_every_asset_and_every_port_was_recorded(report: Report) -> None:
    kinds = {point.kind for point in report.points}
    assert kinds == set(KINDS) - {"knowledge"}, "the index is off here: its library cannot be forked"
    materialized = {point.label for point in report.points if point.kind == "materialize"}
    assert len(materialized) == 23
    assert {crash.when for crash in report.crashes} == {"before", "during", "late", "after"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "knowledge"])
def test_a_run_killed_at_any_effect_loses_and_repeats_nothing(report: Report, kind: str) -> None:
    wanted = {crash for crash in report.crashes if crash.point.kind == kind}
    assert wanted
    assert wanted <= report.fired, f"not tried: {sorted(map(str, wanted - report.fired))}"
    assert _problems(report, kind) == []


def test_only_questions_on_their_way_were_paid_for_in_vain(report: Report) -> None:
    """Every question asked in vain was lost by a crash of the step that asks it, before its answer was kept."""
    askers = {
        "analyst": "analysis",
        "planner": "plan",
        "architect": "architecture_review",
        "code reviewer": "reviews",
        "security reviewer": "reviews",
        "operations reviewer": "reviews",
    }
    for journey in report.journeys:
        for (role, _), times in journey.lost.items():
            crashed = [crash for crash in journey.fired if crash.point.step == askers[role]]
            assert 1 <= times <= len(crashed), (role, times, list(map(str, crashed)))


def test_a_run_killed_while_it_remembers_leaves_one_memory() -> None:
    """The index of past resolutions is a library with threads of its own: a small journey for it alone."""
    with model_server() as model, floor(model.url, {"ATELIER_KNOWLEDGE": "true"}) as running:
        key = running.ticket("recorded", "Add a feature to recorded")
        assert running.start(key).ok
        assert running.release(key, running.decide(key)).ok
        assert isinstance(running.settle(key), DoneStep)
        crashes = [crash for crash in crashes_of(running.points(key)) if crash.point.kind == "knowledge"]
        assert {crash.when for crash in crashes} == {"before", "during", "after"}
        gauntlet = Gauntlet(running, model, Plan.of(crashes))
        for journey in gauntlet.run():
            assert journey.problems == []
            index = LanceKnowledge(str(running.home / "knowledge"))
            found = asyncio.run(index.similar(journey.key.repo, f"Add a feature to {journey.key.repo.name}", limit=9))
            titles = [resolution.title for resolution in found]
            assert titles.count(f"Add a feature to {journey.key.repo.name}") == 1, found
        assert set(gauntlet.plan.tried) == set(crashes)


def _problems(report: Report, kind: str) -> list[str]:
    """What went wrong in journeys with crashes of a kind, with the crashes that may have caused it."""
    return [
        f"{journey.key}: {problem}\n  crashes: {', '.join(map(str, journey.fired))}"
        for journey in report.journeys
        if any(crash.point.kind == kind for crash in journey.fired)
        for problem in journey.problems
    ]
