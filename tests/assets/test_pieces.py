"""The decisions inside the assets that need no run: verdicts of parts, attempts, waves, rework, endings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assets.building import attempt_id, rework_records, waves_of
from assets.delivery import ending_of
from assets.reviewing import merge_verdicts
from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.change import Campaign, Ending, WorkshopRecord
from atelier_dagster.factory.lineage import Artifact, Entry, History
from atelier_dagster.factory.plan import ApprovedPlan, GreenfieldSpec, Plan, SubTask
from atelier_dagster.factory.ticket import Ticket
from atelier_dagster.factory.verdict import Decision, ReviewVerdict
from atelier_dagster.orchestration import tags
from tests.support.journey import KEY, Journey

verdicts = st.lists(
    st.builds(
        ReviewVerdict,
        verdict=st.sampled_from(Decision),
        comments=st.lists(st.sampled_from(["a", "b", "c"]), max_size=3).map(tuple),
        concern=st.sampled_from(["", "cut short", "could not be read"]),
    ),
    max_size=5,
)


@given(verdicts)
def test_one_verdict_keeps_every_refusal_comment_and_concern(parts: list[ReviewVerdict]) -> None:
    merged = merge_verdicts(parts)
    assert merged.refused == any(part.refused for part in parts)
    assert set(merged.comments) == {comment for part in parts for comment in part.comments}
    assert len(merged.comments) == len(set(merged.comments))
    assert all(part.concern in merged.concern for part in parts)
    assert bool(merged.concern) == (not parts or any(part.concern for part in parts))


def record(task: str, branch: str = "b") -> WorkshopRecord:
    return WorkshopRecord(name=f"pm-{task}", task_id=task, branch=branch, start_commit="1" * 40, scope=("**",))


def campaign(*tasks: str, **fields: bool) -> Artifact[Campaign]:
    value = Campaign(id="c", workshops=tuple(record(task) for task in tasks), **fields)  # type: ignore[arg-type]
    return Artifact(asset="workshops", ticket=KEY.partition, cycle=1, value=value)


def test_an_attempt_is_named_by_what_was_asked() -> None:
    one, two = campaign("a", "b"), campaign("a", "b", "c")
    names = {attempt_id(one, record("a")), attempt_id(one, record("b")), attempt_id(two, record("a"))}
    assert len(names) == 3
    assert attempt_id(one, record("a")) == attempt_id(campaign("a", "b"), record("a"))


def approved(*tasks: SubTask) -> ApprovedPlan:
    return ApprovedPlan(plan=Plan(tasks=tasks), spec=GreenfieldSpec(applies=False))


def test_whoever_depends_on_others_works_after_them() -> None:
    plan = approved(
        SubTask(id="ui", title="ui", scope=("ui/**",), depends_on=("api",)),
        SubTask(id="api", title="api", scope=("api/**",)),
        SubTask(id="docs", title="docs", scope=("docs/**",)),
    )
    waves = waves_of(campaign("ui", "api", "docs").value, plan)
    assert [{item.task_id for item in wave} for wave in waves] == [{"api", "docs"}, {"ui"}]


def test_a_rework_is_one_wave_whatever_the_plan_says() -> None:
    plan = approved(SubTask(id="a", title="a", scope=("a",)), SubTask(id="b", title="b", scope=("b",)))
    assert [[item.task_id for item in wave] for wave in waves_of(campaign("rework", rework=True).value, plan)] == [
        ["rework"]
    ]


def ticket_of(history: History) -> Artifact[Ticket]:
    entry = history.current("ticket")
    assert entry
    return entry.artifact


def test_rework_goes_on_in_the_first_workshop_from_what_was_integrated_with_every_scope() -> None:
    journey = Journey()
    journey.start()
    plan = approved(
        SubTask(id="a", title="a", scope=("a/**", "shared/**"), devcontainer="dev/a", role="backend"),
        SubTask(id="b", title="b", scope=("b/**", "shared/**")),
    )
    (made,) = rework_records(KEY, ticket_of(journey.history), plan, journey.history)
    integration = journey.current("integration")
    assert (made.branch, made.start_commit) == (integration.branch, integration.head)
    assert made.scope == ("a/**", "shared/**", "b/**")
    assert (made.devcontainer, made.role, made.task_id) == ("dev/a", "backend", "rework")
    assert made.name.endswith("-a")


def test_without_an_integration_there_is_nothing_to_rework() -> None:
    journey = Journey()
    journey.run(("ticket",))
    plan = approved(SubTask(id="a", title="a", scope=("a",)))
    assert not rework_records(KEY, ticket_of(journey.history), plan, journey.history)


# ------------------------------------------------------------------------------------------------------ endings


def decided(action: Action, actor: str = "alice") -> History:
    journey = Journey()
    journey.start()
    journey.decide(action, actor=actor)
    journey.release()
    return journey.history


TOLD = {tags.REASON: "the ticket was closed", tags.ENDING: "cancelled"}


def test_a_merge_says_how_a_cycle_ended_whatever_the_run_was_told() -> None:
    ending, reason = ending_of(decided(Action.APPROVE), TOLD)
    assert ending is Ending.MERGED
    assert reason.startswith("merged as ")


def test_a_rejection_that_counts_ends_as_one() -> None:
    assert ending_of(decided(Action.REJECT), {}) == (Ending.REJECTED, "rejected by alice: so")


@pytest.mark.parametrize("history", [decided(Action.REJECT), decided(Action.REQUEST_CHANGES), History(ticket="t")])
def test_what_the_run_was_told_cancels(history: History) -> None:
    assert ending_of(history, TOLD) == (Ending.CANCELLED, "the ticket was closed")


def test_a_rejection_of_a_stranger_and_a_bare_launch_reject_nothing() -> None:
    assert ending_of(decided(Action.REJECT, "mallory"), {}) == (Ending.CANCELLED, "ended by an operator")
    assert Entry.of(campaign("a"), 1).asset == "workshops"
