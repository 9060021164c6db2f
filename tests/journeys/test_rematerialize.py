"""Any asset materialized alone, as the UI's Materialize does it, in any order: the journey goes on correctly."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pytest

from atelier_dagster.factory.change import Ending
from atelier_dagster.factory.lineage import ASSETS, JOBS
from atelier_dagster.factory.routing import DoneStep, RunStep, WaitKind, WaitStep
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.orchestration import launch
from tests.support.floor import Floor, RunEnd, floor
from tests.support.model import Answer, ModelServer, approve, model_server

pytestmark = [pytest.mark.journey, pytest.mark.timeout(900), pytest.mark.long]

DELIVER = JOBS["deliver"]
REVIEWS = {"code_review": "code reviewer", "security_review": "security reviewer", "ops_review": "operations reviewer"}


@dataclass
class Team:
    """Roles that agree. What is added to an answer makes it another one; who refuses asks for changes."""

    added: dict[str, str] = field(default_factory=dict[str, str])
    refusing: set[str] = field(default_factory=set[str])

    def __call__(self, role: str, prompt: str) -> Answer:
        """An answer."""
        text = approve(role, prompt)
        assert isinstance(text, str)
        answer: dict[str, Any] = json.loads(text)
        added = self.added.get(role, "")
        if role == "analyst":
            answer["job_story"] += added
        elif role == "planner":
            answer["tasks"][0]["description"] += added
        elif added:
            answer["comments"] = [added]
        if role in self.refusing:
            answer = {"verdict": "request_changes", "comments": [f"not good enough{added}"]}
        return json.dumps(answer)


@pytest.fixture(scope="module")
def team() -> Team:
    """Everybody agrees until a test says otherwise."""
    return Team()


@pytest.fixture(scope="module")
def model(team: Team) -> Iterator[ModelServer]:
    """The team's socket."""
    with model_server(team) as server:
        yield server


@pytest.fixture(scope="module")
def house(model: ModelServer) -> Iterator[Floor]:
    """One installation for all."""
    with floor(model.url) as running:
        yield running


@pytest.fixture(autouse=True)
def agreement(team: Team) -> Iterator[None]:
    """Each test begins with a team that agrees."""
    yield
    team.added.clear()
    team.refusing.clear()


# ------------------------------------------------------------------------------------------------------ helpers


def waiting(house: Floor, name: str) -> TicketKey:
    """A ticket whose pull request waits for a decision."""
    key = house.ticket(name, f"Add a feature to {name}")
    end = house.start(key)
    assert end.ok, end.log[-3000:]
    assert_waits(house, key)
    return key


def assert_waits(house: Floor, key: TicketKey, kind: WaitKind = WaitKind.APPROVAL) -> None:
    """A human is waited for, and nothing was merged."""
    step = house.next(key)
    assert isinstance(step, WaitStep), step
    assert step.kind is kind, step
    assert merges(house, key) == []


def approve_and_finish(house: Floor, key: TicketKey) -> None:
    """Approve the present head: it is merged, once, and the cycle ends."""
    head = house.opened(key).head
    end = house.release(key, house.decide(key))
    assert end.ok, end.log[-3000:]
    step = house.settle(key)
    assert isinstance(step, DoneStep)
    assert step.ending is Ending.MERGED
    assert len(merges(house, key)) == 1
    assert git(house, key, "rev-parse", "main^2") == [head]


def only_judge(house: Floor, key: TicketKey) -> None:
    """Approve the present head, and judge that without merging yet."""
    entry = house.history(key).current("pull_request")
    assert entry is not None
    request = launch.release_request(key.partition, house.decide(key), entry.sha256)
    only = dg.RunRequest(
        job_name="release",
        partition_key=key.partition,
        asset_selection=[dg.AssetKey("approval")],
        run_config=request.run_config,
        tags=request.tags,
    )
    assert house.run(only).ok
    step = house.next(key)
    assert isinstance(step, RunStep)
    assert (step.job, step.assets) == ("release", JOBS["release"][1:])


def assert_ended(house: Floor, key: TicketKey, ending: Ending = Ending.MERGED) -> None:
    """The cycle has ended and stays so."""
    step = house.next(key)
    assert isinstance(step, DoneStep), step
    assert step.ending is ending
    assert len(merges(house, key)) == (1 if ending is Ending.MERGED else 0)


def git(house: Floor, key: TicketKey, *argv: str) -> list[str]:
    """What git says about the forge's repository."""
    path = house.home / "forge" / key.repo.owner / key.repo.name / "repo.git"
    done = subprocess.run(["git", "-C", str(path), *argv], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


def merges(house: Floor, key: TicketKey) -> list[str]:
    """Merge commits on the base branch."""
    return git(house, key, "rev-list", "--first-parent", "--merges", "main")


def error_of(house: Floor, end: RunEnd) -> tuple[str, str]:
    """Code and fix of the step failure of a run, as a user sees them."""
    records = house.instance.get_records_for_run(end.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    for record in records:
        event = record.event_log_entry.dagster_event
        assert event is not None
        if failure := event.step_failure_data.user_failure_data:
            return str(failure.metadata["code"].value), str(failure.metadata["what to do"].value)
    raise AssertionError(f"no step failed\n{end.log[-3000:]}")


def asked_of(model: ModelServer, key: TicketKey) -> dict[str, int]:
    """Role -> how often it was asked about a ticket."""
    asked = [role for role, prompt in model.asked if f"Add a feature to {key.repo.name}\n" in prompt]
    return {role: asked.count(role) for role in set(asked)}


# ------------------------------------------------------------------------- in mid-journey, with the same content

SUCCEEDS_WAITING = {asset: asset in DELIVER for asset in ASSETS if asset != "outcome"}
"""Whether an asset can be materialized alone while the pull request waits. `outcome` ends the cycle: see below."""

MISSING = {"merge": "approval", "knowledge": "merge", "qa_report": "merge"}
"""Asset that cannot be made yet -> what its error says to materialize first."""


def test_repeating_any_asset_while_the_pull_request_waits_changes_nothing(house: Floor, model: ModelServer) -> None:
    """The same content is the same artifact: all that was made from it stays current, and the human is not asked
    anew. What is not due yet fails and says why, or (the decision) cannot be started at all."""
    key = waiting(house, "mid-same")
    before = house.history(key).current_assets()
    artifacts = {asset: house.history(key).current(asset) for asset in before}
    for asset, succeeds in SUCCEEDS_WAITING.items():
        end = house.materialize(key, asset)
        assert end.ok is succeeds, (asset, end.log[-3000:])
        if asset in MISSING:
            code, fix = error_of(house, end)
            assert (code, MISSING[asset] in fix) == ("NOT_FOUND", True), (asset, code, fix)
        assert_waits(house, key)
        history = house.history(key)
        assert history.current_assets() == before, asset
        now = {name: history.current(name) for name in before}
        assert {n: e and e.sha256 for n, e in now.items()} == {n: e and e.sha256 for n, e in artifacts.items()}, asset
    assert house.executions(key) == {f"pm-{key.slug}-all": 1}, "work that was committed is not paid twice"
    approve_and_finish(house, key)


def test_a_decision_without_configuration_is_never_made_up(house: Floor) -> None:
    key = waiting(house, "no-config")
    end = house.materialize(key, "approval")
    assert not end.ok
    assert "config" in end.log
    assert house.history(key).all("approval") == ()
    assert house.instance.get_run_by_id(end.run_id) is None, "Dagster refuses to make such a run"
    assert_waits(house, key)


# ------------------------------------------------------------------------------ in mid-journey, with other content

CHANGED: dict[str, tuple[str, ...]] = {
    "ticket": DELIVER[DELIVER.index("analysis") :],
    "analysis": DELIVER[DELIVER.index("plan") :],
    "plan": DELIVER[DELIVER.index("greenfield_spec") :],
    "architecture_review": DELIVER[DELIVER.index("plan_document") :],
    "code_review": ("review_gate", "pull_request"),
    "security_review": ("review_gate", "pull_request"),
    "ops_review": ("review_gate", "pull_request"),
}
"""Asset that comes out differently -> what routing then makes anew: exactly what was made from it."""

ROLES = {"analysis": "analyst", "plan": "planner", "architecture_review": "architect", **REVIEWS}


def change(house: Floor, team: Team, key: TicketKey, asset: str, text: str) -> RunEnd:
    """Materialize an asset so that it comes out differently."""
    if asset == "ticket":
        path = house.home / "forge" / key.repo.owner / key.repo.name / "tickets" / f"{key.number}.md"
        path.write_text(path.read_text() + f"\n{text}\n")
    else:
        team.added[ROLES[asset]] = text
    return house.materialize(key, asset)


def test_what_comes_out_differently_is_followed_by_all_that_was_made_from_it(house: Floor, team: Team) -> None:
    """Also when it was approved a moment before: an approval does not outlive a change of what it approved."""
    key = waiting(house, "mid-changed")
    for asset, follows in CHANGED.items():
        only_judge(house, key)
        end = change(house, team, key, asset, f" and now {asset}")
        assert end.ok, (asset, end.log[-3000:])
        end = house.materialize(key, "merge")
        assert not end.ok
        code, fix = error_of(house, end)
        assert (code, f"materialize {follows[0]}" in fix) == ("STALE_INPUT", True), (asset, code, fix)
        step = house.next(key)
        assert isinstance(step, RunStep), (asset, step)
        assert (step.job, step.assets) == ("deliver", follows), asset
        house.settle(key)
        assert_waits(house, key)
        assert house.history(key).current_assets()[-1] == "pull_request", asset
    assert len(git(house, key, "for-each-ref", "refs/heads")) == 2, "the same branch, never forced"
    approve_and_finish(house, key)


# ----------------------------------------------------------------------------------------------- closed gates


def test_nothing_passes_a_gate_that_closed_again(house: Floor, team: Team) -> None:
    """The old pull request is no way around a reviewer who refuses now."""
    key = waiting(house, "closed-review")
    only_judge(house, key)
    team.refusing.add("code reviewer")
    assert house.materialize(key, "code_review").ok
    assert house.materialize(key, "review_gate").ok, "a closed gate is no failure"
    assert len(house.history(key).all("review_gate")) == 1, "and yields nothing"
    for asset in ("pull_request", "merge"):
        end = house.materialize(key, asset)
        assert not end.ok
        code, fix = error_of(house, end)
        assert (code, "materialize review_gate" in fix) == ("STALE_INPUT", True), (asset, code, fix)
    step = house.next(key)
    assert isinstance(step, RunStep)
    assert (step.job, step.assets) == ("deliver", DELIVER[DELIVER.index("workshops") :])
    team.refusing.clear()
    house.settle(key)
    assert_waits(house, key)
    approve_and_finish(house, key)


def test_nothing_passes_an_architect_who_refuses_now(house: Floor, team: Team) -> None:
    key = waiting(house, "closed-plan")
    team.refusing.add("architect")
    assert house.materialize(key, "architecture_review").ok
    for asset in ("plan_document", "approved_plan"):
        assert house.materialize(key, asset).ok
    assert len(house.history(key).all("approved_plan")) == 1
    for asset in ("workshops", "changes", "integration", "diff", "test_report", "tested_diff", "code_review"):
        end = house.materialize(key, asset)
        assert not end.ok
        code, fix = error_of(house, end)
        assert (code, "materialize approved_plan" in fix) == ("STALE_INPUT", True), (asset, code, fix)
    step = house.next(key)
    assert isinstance(step, WaitStep | RunStep)


# --------------------------------------------------------------------------------------------------- the reviews


def test_one_review_alone_asks_only_its_reviewer(house: Floor, model: ModelServer) -> None:
    key = waiting(house, "only")
    for asset in REVIEWS:
        before, history = asked_of(model, key), house.history(key)
        assert house.materialize(key, asset).ok
        after, now = asked_of(model, key), house.history(key)
        for name, role in REVIEWS.items():
            assert after[role] - before[role] == int(name == asset), (asset, name)
            assert len(now.all(name)) - len(history.all(name)) == int(name == asset), (asset, name)


# ------------------------------------------------------------------------------------------------------ odd orders

ODD: tuple[tuple[str, ...], ...] = (
    ("pull_request", "diff", "analysis"),
    ("review_gate", "test_report", "code_review"),
    ("code_review", "changes", "plan"),
)
"""Assets made one after the other, against the direction of the graph. The last comes out differently."""


def test_odd_orders_lead_to_a_pull_request_that_waits(house: Floor, team: Team) -> None:
    key = waiting(house, "odd")
    for number, (*first, last) in enumerate(ODD):
        for asset in first:
            assert house.materialize(key, asset).ok, asset
        assert change(house, team, key, last, f" order {number}").ok, last
        step = house.next(key)
        assert isinstance(step, RunStep), (last, step)
        assert step.assets == CHANGED[last], last
        house.settle(key)
        assert_waits(house, key)
    approve_and_finish(house, key)


def test_two_assets_apart_in_one_run_never_meet_over_a_gap(house: Floor, team: Team) -> None:
    """One selection from the UI with a changed analysis and the pull request: nothing between them was made anew."""
    key = waiting(house, "gap")
    team.added["analyst"] = " over a gap"
    end = house.materialize(key, "analysis", "pull_request")
    assert not end.ok
    code, fix = error_of(house, end)
    assert (code, "materialize plan" in fix) == ("STALE_INPUT", True), (code, fix)
    house.settle(key)
    assert_waits(house, key)
    approve_and_finish(house, key)


# ------------------------------------------------------------------------------------------------------- the end


def test_materializing_the_outcome_ends_a_journey_that_waits(house: Floor) -> None:
    """An operator's word: nothing is merged, the ticket stays open, and it stays ended whatever is made afterwards."""
    key = waiting(house, "stopped")
    assert house.materialize(key, "outcome").ok
    assert_ended(house, key, Ending.CANCELLED)
    assert asyncio.run(house.tracker.get_issue(key)).is_open
    assert asyncio.run(house.workshops.list(ticket=key.partition)) == []
    for asset in ("ticket", "analysis", "review_gate", "pull_request", "outcome"):
        house.materialize(key, asset)
        assert_ended(house, key, Ending.CANCELLED)


@pytest.fixture(scope="module")
def ended(house: Floor) -> TicketKey:
    """A ticket that was merged."""
    key = waiting(house, "ended")
    approve_and_finish(house, key)
    return key


@pytest.mark.parametrize("asset", ASSETS)
def test_an_ended_ticket_stays_ended(house: Floor, ended: TicketKey, asset: str) -> None:
    """Everything can be made again (only a decision cannot be made up); nothing is reopened or merged again."""
    cycle = house.history(ended).cycle
    end = house.materialize(ended, asset)
    assert end.ok is (asset != "approval"), end.log[-3000:]
    assert_ended(house, ended)
    assert house.history(ended).cycle == cycle
    assert not asyncio.run(house.tracker.get_issue(ended)).is_open


@pytest.mark.parametrize("asset", CHANGED)
def test_what_changes_after_the_end_reopens_nothing(house: Floor, team: Team, ended: TicketKey, asset: str) -> None:
    assert change(house, team, ended, asset, f" after the end, {asset}").ok
    assert_ended(house, ended)
