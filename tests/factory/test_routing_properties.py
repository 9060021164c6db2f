"""What holds for every history: routing ends, nothing merges unapproved, nothing stale opens a gate."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from atelier_dagster.factory import gates
from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.lineage import ASSETS, JOBS, UPSTREAM, History
from atelier_dagster.factory.routing import (
    DoneStep,
    Policy,
    RunStep,
    WaitKind,
    WaitStep,
    missing,
    resume_step,
)
from tests.support.journey import Journey, digest, shake

BOUND = 400
"""Far more runs than the budgets below can ask for."""


def _above(asset: str) -> frozenset[str]:
    return frozenset({asset}).union(*(_above(upstream) for upstream in UPSTREAM[asset]))


CLOSURE = {asset: _above(asset) for asset in ASSETS}

policies = st.builds(
    Policy,
    architecture_redos=st.integers(0, 3),
    correction_redos=st.integers(0, 3),
    review_redos=st.integers(0, 3),
    plan_review=st.sampled_from(["auto", "human"]),
    max_failures=st.integers(1, 4),
    base_updates=st.integers(0, 3),
)


def naively_current(history: History) -> set[str]:
    """The rule as architecture states it, without exceptions: asked of every asset with all that is above it."""
    latest = {entry.asset: entry for entry in history.entries}

    def follows(asset: str) -> bool:
        made = latest.get(asset)
        return (
            made is not None
            and made.artifact.cycle == history.cycle
            and all(
                upstream in latest and made.artifact.inputs.get(upstream) == latest[upstream].sha256
                for upstream in UPSTREAM[asset]
            )
        )

    sound = {asset for asset in ASSETS if follows(asset)}
    return {asset for asset in ASSETS if CLOSURE[asset] <= sound}


class Chaos:
    """Accidents, strangers and curious operators, until their number is spent; then people who want it to end."""

    def __init__(self, journey: Journey, seed: int, stubbornness: float, accidents: int) -> None:
        self.journey, self.dice, self.stubbornness, self.accidents = journey, Random(seed), stubbornness, accidents
        journey.crash_at = lambda _: self._accident(0.02)

    def _accident(self, chance: float) -> bool:
        if self.accidents <= 0 or self.dice.random() > chance:
            return False
        self.accidents -= 1
        return True

    def disturb(self) -> None:
        journey, dice = self.journey, self.dice
        shake(journey.said, dice, self.stubbornness)
        journey.said.wording = f"w{dice.randrange(5)}" if self.accidents > 0 else "w"
        if self._accident(0.2):
            journey.move_base()
        if self._accident(0.1):
            journey.said.base_moves_before_merge = True
        journey.said.forge_refuses = self._accident(0.1)
        journey.said.nothing_changed = self._accident(0.05)
        if self._accident(0.1):
            journey.said.head_now = digest(dice.random())
        if self._accident(0.15):
            journey.said.body = f"body {dice.randrange(3)}"
        if self._accident(0.3):
            journey.run(tuple(dice.sample(ASSETS[:-1], k=dice.randrange(1, 4))))
        if self._accident(0.1):
            journey.end(dice.choice(["failure", "cancelled", "success"]), "boom", dice.choice(["", *JOBS]))

    def act(self, step: WaitStep) -> None:
        """What a human does about a wait."""
        journey = self.journey
        journey.said.plan_approved = True
        decided = (WaitKind.APPROVAL, WaitKind.DECISION_REFUSED, WaitKind.MERGE_REFUSED)
        told_to_go_on = step.kind is WaitKind.MERGE_REFUSED and self.dice.random() < 0.5
        if step.kind in decided and journey.history.current("pull_request") and not told_to_go_on:
            self._decide()
            journey.release()
        else:
            again = resume_step(journey.history, journey.policy)
            if not isinstance(again, RunStep):
                again = RunStep(job="deliver", assets=missing(journey.history, "deliver"), reason="by hand")
            if "approval" in again.assets:
                self._decide()
            journey.run(again.assets, job=again.job)

    def _decide(self) -> None:
        journey, dice = self.journey, self.dice
        if journey.history.current("pull_request") is None:
            return
        if not self._accident(0.7):
            journey.decide(Action.APPROVE)
            return
        heads = [entry.artifact.value.head for entry in journey.history.all("pull_request")]
        head = dice.choice([None, "", digest("never seen"), *heads])
        action = dice.choice([Action.APPROVE, Action.APPROVE, Action.REQUEST_CHANGES, Action.REJECT])
        journey.decide(action, head=head, actor=dice.choice(["alice", "alice", "mallory", "atelier-bot", ""]))


def check(journey: Journey, step: RunStep | WaitStep | DoneStep) -> None:
    """What must hold whenever routing is asked."""
    history = journey.history
    naive = naively_current(history)
    for gate, inputs in (
        (gates.architecture_gate, ("plan", "greenfield_spec", "architecture_review")),
        (gates.tests_gate, UPSTREAM["tested_diff"]),
        (gates.review_gate_ruling, UPSTREAM["review_gate"]),
    ):
        if gate(history, journey.policy).open and not history.current("merge"):
            assert set(inputs) <= naive
    if not history.current("merge") or not journey.merges:
        assert set(history.current_assets()) - {"outcome"} == naive - {"outcome"}
    if isinstance(step, RunStep) and "merge" in step.assets and "approval" not in step.assets:
        approval = history.current("approval")
        assert approval
        assert approval.artifact.value.counts
        assert approval.artifact.value.decision.action is Action.APPROVE
    if isinstance(step, RunStep) and journey.merges:
        assert step.job in ("release", "close")
        assert "merge" not in step.assets


@settings(max_examples=80, deadline=None)
@given(policies, st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.integers(0, 25))
def test_every_journey_ends_and_merges_only_what_was_approved(
    policy: Policy, seed: int, stubbornness: float, accidents: int
) -> None:
    journey = Journey(policy)
    chaos = Chaos(journey, seed, stubbornness, accidents)
    for _ in range(BOUND):
        step = journey.step()
        check(journey, step)
        if isinstance(step, DoneStep):
            break
        chaos.disturb()
        if isinstance(step := journey.step(), RunStep):
            journey.run(step.assets, job=step.job)
        elif isinstance(step, WaitStep):
            chaos.act(step)
    else:
        raise AssertionError(f"no end: {journey.step()}")
    assert len(journey.merges) <= 1
    for merged in journey.merges:
        decision, opened = merged.approval.decision, merged.pull_request
        earlier = [entry.artifact.value for entry in merged.history.all("pull_request")]
        same_content = {value.head for value in earlier if value.diff_sha256 == opened.diff_sha256}
        assert decision.actor == "alice"
        assert decision.action is Action.APPROVE
        assert decision.head in same_content | {opened.head}
        assert merged.approval.head == opened.head


@settings(max_examples=60, deadline=None)
@given(policies, st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 1.0]))
def test_delivery_is_bounded_by_its_budgets(policy: Policy, seed: int, stubbornness: float) -> None:
    """Without people and accidents, the number of runs is that of the budgets and the first one."""
    journey = Journey(policy.model_copy(update={"plan_review": "auto"}))
    dice = Random(seed)
    journey.run(JOBS["deliver"], job="deliver")
    while isinstance(step := journey.step(), RunStep):
        shake(journey.said, dice, stubbornness)
        journey.run(step.assets, job=step.job)
    assert isinstance(step, WaitStep)
    assert step.kind is WaitKind.APPROVAL
    assert len(journey.runs) <= 1 + policy.architecture_redos + policy.correction_redos + policy.review_redos


def decisions(journey: Journey) -> set[str]:
    """Every artifact made; the page of a plan that was refused anyway may be missing after a crash."""
    return {entry.sha256 for entry in journey.entries if entry.asset != "plan_document"}


@settings(max_examples=40, deadline=None)
@given(policies, st.integers(0, 2**32))
def test_crashes_cost_no_budget(policy: Policy, seed: int) -> None:
    """A journey whose runs are killed at random makes the same decisions as one that is left alone."""
    calm = Journey(policy.model_copy(update={"plan_review": "auto", "max_failures": 100}))
    harried = Journey(calm.policy)
    dice = Random(seed)
    for journey in (calm, harried):
        shake(journey.said, Random(seed), 1.0)
    harried.crash_at = lambda _: dice.random() < 0.1
    calm.start()
    harried.start()
    if harried.history.latest("ticket"):
        harried.follow()
        assert decisions(harried) == decisions(calm)
