"""Every row of the routing table, by example."""

from __future__ import annotations

import pytest

from atelier_dagster.factory import gates
from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.change import Ending, TestStatus
from atelier_dagster.factory.lineage import JOBS
from atelier_dagster.factory.routing import (
    DoneStep,
    Policy,
    RunStep,
    WaitKind,
    WaitStep,
    building_start,
    delivery_from,
    planning_start,
    resume_step,
)
from tests.support.journey import Journey, digest, refuse


@pytest.fixture
def journey() -> Journey:
    return Journey()


def kind_of(step: object) -> WaitKind:
    assert isinstance(step, WaitStep), step
    return step.kind


def run_of(step: object) -> RunStep:
    assert isinstance(step, RunStep), step
    return step


def proposed(journey: Journey) -> Journey:
    assert kind_of(journey.start()) is WaitKind.APPROVAL
    return journey


def test_happy_path_is_one_run_of_each_job(journey: Journey) -> None:
    proposed(journey).decide(Action.APPROVE)
    journey.release()
    assert run_of(journey.step()).job == "close"
    step = journey.follow()
    assert isinstance(step, DoneStep)
    assert step.ending is Ending.MERGED
    assert [run.job for run in journey.runs] == ["deliver", "release", "close"]


def test_nothing_read_yet_waits(journey: Journey) -> None:
    assert kind_of(journey.step()) is WaitKind.NOT_STARTED


def test_start_that_failed_before_reading_the_ticket_is_repeated(journey: Journey) -> None:
    run = journey.end("failure", "killed", job="deliver")
    step = run_of(journey.step())
    assert (step.assets, step.delay_seconds, step.repeats) == (JOBS["deliver"], 10, run.run_id)


def test_new_cycle_that_failed_before_reading_the_ticket_is_repeated(journey: Journey) -> None:
    proposed(journey).decide(Action.REJECT)
    journey.release()
    assert isinstance(journey.follow(), DoneStep)
    run = journey.end("failure", "killed", job="deliver")
    step = run_of(journey.step())
    assert (step.job, step.assets, step.repeats) == ("deliver", JOBS["deliver"], run.run_id)


def test_failure_of_an_ad_hoc_run_after_the_end_starts_nothing(journey: Journey) -> None:
    proposed(journey).decide(Action.REJECT)
    journey.release()
    journey.follow()
    journey.end("failure", "killed")
    assert isinstance(journey.step(), DoneStep)


@pytest.mark.parametrize("findings", [True, False])
def test_refused_plan_is_made_again_with_the_objections(journey: Journey, findings: bool) -> None:
    journey.said.findings = findings
    if not findings:
        journey.said.architect = refuse("a and b overlap")
    journey.run(JOBS["deliver"], job="deliver")
    assert run_of(journey.step()).assets == delivery_from("plan")
    start = planning_start(journey.history)
    assert (start.attempt, start.objections) == (2, ("a and b overlap",))
    assert set(start.feedback) == {"architecture_review"}


def test_spent_architecture_budget_opens_the_gate_with_a_concern(journey: Journey) -> None:
    journey.said.architect = refuse("still wrong")
    proposed(journey)
    assert journey.history.all("plan")[-1].artifact.attempt == 4
    approved = journey.current("approved_plan")
    assert approved.overridden
    assert approved.concerns == ("[Architecture] still wrong",)
    assert "[Architecture] still wrong" in journey.current("pull_request").concerns


def test_failed_tests_are_reworked_with_their_output(journey: Journey) -> None:
    journey.said.tests = TestStatus.FAILED
    journey.run(JOBS["deliver"], job="deliver")
    assert run_of(journey.step()).assets == delivery_from("workshops")
    start = building_start(journey.history)
    assert (start.round, start.attempt, start.rework) == (1, 2, True)
    assert "boom" in start.feedback_texts[0]
    journey.said.tests = TestStatus.PASSED
    assert kind_of(journey.follow()) is WaitKind.APPROVAL
    assert journey.current("pull_request").concerns == ()


def test_spent_correction_budget_opens_the_gate_with_a_concern(journey: Journey) -> None:
    journey.said.tests = TestStatus.FAILED
    proposed(journey)
    assert journey.current("workshops").attempt == 4
    assert journey.current("tested_diff").overridden
    assert "[Tests] the tests ended with exit code 1" in journey.current("pull_request").concerns


def test_missing_tests_pass_with_a_concern(journey: Journey) -> None:
    journey.said.tests = TestStatus.MISSING
    proposed(journey)
    assert journey.current("workshops").attempt == 1
    assert any("nothing was tested" in concern for concern in journey.current("pull_request").concerns)


def test_all_refusing_reviews_are_answered_at_once_tagged(journey: Journey) -> None:
    journey.said.code, journey.said.security, journey.said.ops = refuse("c"), refuse("s"), refuse("o")
    journey.run(JOBS["deliver"], job="deliver")
    assert run_of(journey.step()).assets == delivery_from("workshops")
    start = building_start(journey.history)
    assert start.feedback_texts == ("[Code] c", "[Security] s", "[Ops] o")
    assert set(start.feedback) == {"code_review", "security_review", "ops_review"}


def test_spent_review_budget_opens_the_gate_with_a_concern(journey: Journey) -> None:
    journey.said.code = refuse("never")
    proposed(journey)
    assert journey.current("workshops").attempt == 4
    assert journey.current("review_gate").overridden
    assert "[Code] never" in journey.current("pull_request").concerns


def test_budgets_are_counted_apart(journey: Journey) -> None:
    journey.policy = Policy(architecture_redos=1, correction_redos=1, review_redos=1)
    journey.said.architect, journey.said.tests, journey.said.code = refuse(), TestStatus.FAILED, refuse()
    proposed(journey)
    assert len(journey.history.all("plan")) == 2
    # One correction, then the tests are let through; one rework for the reviewer, then it is let through too.
    assert len(journey.history.all("workshops")) == 3


def test_a_budget_of_zero_never_turns_back(journey: Journey) -> None:
    journey.policy = Policy(architecture_redos=0, correction_redos=0, review_redos=0)
    journey.said.architect, journey.said.tests, journey.said.code = refuse(), TestStatus.FAILED, refuse()
    proposed(journey)
    assert len(journey.history.all("workshops")) == len(journey.history.all("plan")) == 1


def test_rematerializing_a_review_by_hand_costs_nothing(journey: Journey) -> None:
    journey.policy = Policy(review_redos=1)
    journey.said.code = refuse("no")
    journey.run(JOBS["deliver"], job="deliver")
    for wording in ("other", "words"):
        journey.said.wording = wording
        journey.materialize("code_review")
        journey.end("success")
    assert run_of(journey.step()).assets == delivery_from("workshops")


def test_nothing_changed_waits_and_is_not_retried(journey: Journey) -> None:
    journey.said.nothing_changed = True
    journey.run(JOBS["deliver"], job="deliver")
    assert kind_of(journey.step()) is WaitKind.NOTHING_CHANGED


def test_spent_money_waits(journey: Journey) -> None:
    journey.materialize("ticket")
    journey.end("failure", "[MODEL_BUDGET] the team's budget is spent", job="deliver")
    assert kind_of(journey.step()) is WaitKind.BUDGET


def test_conflicts_are_told(journey: Journey) -> None:
    journey.said.conflicts = ("atelier/1-b",)
    proposed(journey)
    assert any("atelier/1-b conflicted" in concern for concern in journey.current("pull_request").concerns)


def test_request_for_changes_is_a_new_round_with_fresh_budgets(journey: Journey) -> None:
    journey.said.code = refuse("never")
    proposed(journey).decide(Action.REQUEST_CHANGES)
    journey.release()
    assert run_of(journey.step()).assets == delivery_from("workshops")
    start = building_start(journey.history)
    assert (start.round, start.attempt, start.rework, start.feedback_texts) == (2, 1, True, ("[Human] so",))
    assert kind_of(journey.follow()) is WaitKind.APPROVAL
    assert (journey.current("workshops").round, journey.current("workshops").attempt) == (2, 4)


def test_rejection_closes(journey: Journey) -> None:
    proposed(journey).decide(Action.REJECT)
    journey.release()
    assert run_of(journey.step()).job == "close"
    assert not journey.merges


def test_decision_that_does_not_count_waits(journey: Journey) -> None:
    proposed(journey).decide(Action.APPROVE, actor="mallory")
    journey.release()
    assert kind_of(journey.step()) is WaitKind.DECISION_REFUSED
    journey.decide(Action.APPROVE)
    journey.release()
    assert len(journey.merges) == 1


def test_approval_does_not_survive_a_new_head(journey: Journey) -> None:
    proposed(journey)
    old = journey.current("pull_request").head
    journey.decide(Action.REQUEST_CHANGES)
    journey.release()
    journey.follow()
    journey.decide(Action.APPROVE, head=old)
    journey.release()
    assert kind_of(journey.step()) is WaitKind.DECISION_REFUSED
    assert not journey.merges


@pytest.mark.parametrize("when", ["before the decision", "before the merge"])
def test_moved_base_is_brought_up_to_date_and_approval_of_the_same_content_stands(journey: Journey, when: str) -> None:
    proposed(journey).decide(Action.APPROVE)
    if when == "before the decision":
        journey.move_base()
    else:
        journey.said.base_moves_before_merge = True
    journey.release()
    assert run_of(journey.step()).assets == delivery_from("integration")
    assert kind_of(journey.follow()) is WaitKind.APPROVAL
    journey.release()
    assert len(journey.merges) == 1


def test_same_base_and_head_refused_twice_waits(journey: Journey) -> None:
    proposed(journey).decide(Action.APPROVE)
    journey.move_base()
    journey.release()
    integration = journey.current("integration")
    journey.materialize("integration", by_hand=integration)
    journey.end("success", job="deliver")
    assert kind_of(journey.step()) is WaitKind.MERGE_REFUSED


def test_one_decision_follows_a_moving_base_only_so_often(journey: Journey) -> None:
    journey.policy = Policy(base_updates=2)
    proposed(journey).decide(Action.APPROVE)
    for _ in range(2):
        journey.move_base()
        journey.release()
        assert kind_of(journey.follow()) is WaitKind.APPROVAL
    journey.move_base()
    journey.release()
    assert kind_of(journey.step()) is WaitKind.MERGE_REFUSED
    journey.decide(Action.APPROVE)
    journey.release()
    assert run_of(journey.step()).assets == delivery_from("integration")


def test_moved_head_is_brought_up_to_date(journey: Journey) -> None:
    proposed(journey).decide(Action.APPROVE)
    journey.said.head_now = digest("somebody pushed")
    journey.release()
    assert run_of(journey.step()).assets == delivery_from("integration")
    assert not journey.merges


def test_stranger_cannot_start_work_on_a_moved_head(journey: Journey) -> None:
    proposed(journey).decide(Action.APPROVE, actor="mallory")
    journey.said.head_now = digest("somebody pushed")
    journey.release()
    assert kind_of(journey.step()) is WaitKind.DECISION_REFUSED


def test_merge_refused_by_the_forge_waits_until_a_new_decision(journey: Journey) -> None:
    journey.said.forge_refuses = True
    proposed(journey).decide(Action.APPROVE)
    journey.release()
    assert kind_of(journey.step()) is WaitKind.MERGE_REFUSED
    journey.said.forge_refuses = False
    journey.decide(Action.APPROVE)
    journey.release()
    assert len(journey.merges) == 1


def test_plan_waits_for_a_human(journey: Journey) -> None:
    journey.policy = Policy(plan_review="human")
    assert kind_of(journey.start()) is WaitKind.PLAN_REVIEW
    journey.said.plan_approved = True
    journey.run(("approved_plan",))
    assert kind_of(journey.follow()) is WaitKind.APPROVAL


@pytest.mark.parametrize("asset", JOBS["deliver"])
@pytest.mark.parametrize("moment", ["", "after "])
def test_crash_resumes_with_what_is_missing_only(journey: Journey, asset: str, moment: str) -> None:
    journey.crash_at = lambda at: at == f"{moment}{asset}"
    journey.run(JOBS["deliver"], job="deliver")
    journey.crash_at = lambda _: False
    if (moment, asset) == ("after ", "pull_request"):
        assert kind_of(journey.step()) is WaitKind.APPROVAL
        return
    step = run_of(journey.step())
    place = JOBS["deliver"].index(asset) + bool(moment)
    assert step.assets == JOBS["deliver"][place:]
    assert step.delay_seconds == 10
    assert kind_of(journey.follow()) is WaitKind.APPROVAL
    assert len(journey.entries) == len(JOBS["deliver"])


def test_redo_that_crashed_before_its_first_artifact_is_asked_again(journey: Journey) -> None:
    journey.said.code = refuse("c")
    journey.run(JOBS["deliver"], job="deliver")
    first = building_start(journey.history)
    journey.end("failure", "killed", job="deliver")
    assert run_of(journey.step()).assets == delivery_from("workshops")
    assert building_start(journey.history) == first


def test_redo_that_crashed_later_keeps_its_numbers_and_feedback(journey: Journey) -> None:
    journey.said.code = refuse("c")
    journey.run(JOBS["deliver"], job="deliver")
    wanted = building_start(journey.history)
    journey.materialize("workshops")
    journey.end("failure", "killed", job="deliver")
    assert building_start(journey.history) == wanted
    assert run_of(journey.step()).assets == delivery_from("changes")


def test_replan_that_crashed_later_keeps_its_numbers_and_objections(journey: Journey) -> None:
    journey.said.architect = refuse("c")
    journey.run(JOBS["deliver"], job="deliver")
    wanted = planning_start(journey.history)
    journey.materialize("plan")
    journey.end("failure", "killed", job="deliver")
    assert planning_start(journey.history) == wanted


def test_new_analysis_starts_planning_and_building_anew(journey: Journey) -> None:
    journey.said.architect = refuse("c")
    proposed(journey)
    journey.said.body = "something else"
    journey.run(("ticket", "analysis"))
    assert planning_start(journey.history).attempt == 1
    assert building_start(journey.history).attempt == 1
    assert run_of(journey.step()).assets == delivery_from("plan")


def test_failures_back_off_and_then_wait(journey: Journey) -> None:
    journey.materialize("ticket")
    delays: list[float] = []
    for _ in range(2):
        journey.end("failure", "boom", job="deliver")
        delays.append(run_of(journey.step()).delay_seconds)
    journey.end("failure", "boom", job="deliver")
    assert delays == [10, 60]
    assert kind_of(journey.step()) is WaitKind.FAILURES
    journey.materialize("analysis")
    journey.end("failure", "boom", job="deliver")
    assert run_of(journey.step()).delay_seconds == 10


def test_successes_without_a_trace_do_not_loop(journey: Journey) -> None:
    journey.materialize("ticket")
    journey.end("success", job="deliver")
    for _ in range(3):
        assert run_of(journey.step()).job == "deliver"
        journey.end("success", job="deliver")
    assert kind_of(journey.step()) is WaitKind.FAILURES


def test_going_on_by_hand_is_not_held_up_by_failures(journey: Journey) -> None:
    journey.materialize("ticket")
    for _ in range(5):
        journey.end("failure", "boom", job="deliver")
    step = run_of(resume_step(journey.history, journey.policy))
    assert (step.assets, step.delay_seconds) == (delivery_from("analysis"), 0)


def test_going_on_after_nothing_changed_asks_the_agents_again(journey: Journey) -> None:
    journey.said.nothing_changed = True
    journey.run(JOBS["deliver"], job="deliver")
    assert run_of(resume_step(journey.history, journey.policy)).assets == delivery_from("workshops")


def test_going_on_after_a_refused_merge_asks_the_forge_or_updates(journey: Journey) -> None:
    journey.policy = Policy(base_updates=0)
    journey.said.forge_refuses = True
    proposed(journey).decide(Action.APPROVE)
    journey.release()
    assert run_of(resume_step(journey.history, journey.policy)).assets == ("merge", "knowledge", "qa_report")
    journey.move_base()
    journey.decide(Action.APPROVE)
    journey.release()
    assert kind_of(journey.step()) is WaitKind.MERGE_REFUSED
    assert run_of(resume_step(journey.history, journey.policy)).assets == delivery_from("integration")


def test_cancelled_run_waits_for_a_human(journey: Journey) -> None:
    journey.materialize("ticket")
    journey.end("cancelled", job="deliver")
    assert kind_of(journey.step()) is WaitKind.CANCELLED
    journey.run(("analysis",))
    assert run_of(journey.step()).job == "deliver"


def test_decision_whose_run_failed_is_fetched_again(journey: Journey) -> None:
    proposed(journey).decide(Action.APPROVE)
    journey.crash_at = lambda at: at == "approval"
    run = journey.release()
    journey.crash_at = lambda _: False
    step = run_of(journey.step())
    assert (step.assets, step.repeats, step.delay_seconds) == (JOBS["release"], run.run_id, 10)


@pytest.mark.parametrize("at", ["merge", "after approval", "after merge", "knowledge", "qa_report", "after qa_report"])
def test_crash_in_release_merges_once(journey: Journey, at: str) -> None:
    proposed(journey).decide(Action.APPROVE)
    journey.crash_at = lambda place: place == at
    journey.release()
    journey.crash_at = lambda _: False
    assert isinstance(journey.follow(), DoneStep)
    assert len(journey.merges) == 1
    assert journey.history.current("qa_report")


def test_close_whose_run_failed_is_repeated(journey: Journey) -> None:
    proposed(journey)
    run = journey.end("failure", "killed", job="close")
    step = run_of(journey.step())
    assert (step.job, step.repeats) == ("close", run.run_id)


def test_ticket_that_was_never_read_has_nothing_to_close(journey: Journey) -> None:
    journey.end("failure", "killed", job="close")
    assert kind_of(journey.step()) is WaitKind.NOT_STARTED


def test_knowledge_that_a_crash_cost_is_made_up_for_before_the_end(journey: Journey) -> None:
    proposed(journey).decide(Action.APPROVE)
    journey.run(("approval", "merge", "qa_report"), job="release")
    step = run_of(journey.step())
    assert (step.job, step.assets) == ("release", ("knowledge",))
    journey.run(step.assets, job=step.job)
    assert run_of(journey.step()).job == "close"


def test_knowledge_alone_holds_nothing_up(journey: Journey) -> None:
    """Trying again must neither be repeated for long nor make a human necessary."""
    proposed(journey).decide(Action.APPROVE)
    journey.run(("approval", "merge", "qa_report"), job="release")
    assert run_of(journey.step()).assets == ("knowledge",)
    journey.end("failure", "the index is broken", job="release")
    assert run_of(journey.step()).job == "close"


@pytest.mark.parametrize("asset", [a for job in ("deliver", "release") for a in JOBS[job]])
def test_each_asset_by_hand_while_the_pull_request_waits(journey: Journey, asset: str) -> None:
    """The same content changes nothing; other content asks for what follows from it; nothing merges by itself."""
    proposed(journey)
    journey.said.wording = "other words"
    journey.said.body = "another body"
    journey.run((asset,))
    step = journey.follow()
    assert kind_of(step) is WaitKind.APPROVAL
    assert not journey.merges


@pytest.mark.parametrize("asset", [a for job in ("deliver", "release") for a in JOBS[job]])
def test_each_asset_by_hand_after_the_merge_reopens_nothing(journey: Journey, asset: str) -> None:
    proposed(journey).decide(Action.APPROVE)
    journey.run(("approval", "merge"), job="release")
    journey.said.wording, journey.said.body = "other words", "another body"
    journey.move_base()
    journey.run((asset,))
    for _ in range(5):
        step = journey.step()
        if isinstance(step, DoneStep):
            break
        assert run_of(step).job in ("release", "close")
        assert "merge" not in run_of(step).assets
        journey.run(run_of(step).assets, job=run_of(step).job)
    else:
        pytest.fail("it does not end")
    journey.run((asset,))
    assert isinstance(journey.step(), DoneStep)
    assert len(journey.merges) == 1


def test_old_open_gate_does_not_open_for_a_later_refusal(journey: Journey) -> None:
    """After a gate closed, materializing `pull_request` alone must not use the gate's older output."""
    proposed(journey)
    journey.said.code = refuse("c")
    journey.run(("code_review",))
    assert journey.run(("pull_request",)).status == "failure"
    assert run_of(journey.step()).assets == delivery_from("workshops")


def test_next_cycle_starts_from_nothing(journey: Journey) -> None:
    proposed(journey).decide(Action.APPROVE)
    journey.release()
    assert isinstance(journey.follow(), DoneStep)
    journey.cycle = 2
    journey.run(("ticket",), job="deliver")
    assert journey.history.current_assets() == ("ticket",)
    assert run_of(journey.step()).assets == delivery_from("analysis")


def test_gates_stay_closed_on_nothing() -> None:
    history = Journey().history
    for ruling in (gates.architecture_gate, gates.tests_gate, gates.review_gate_ruling):
        answer = ruling(history, Policy())
        assert not answer.open
        assert "materialize ticket" in answer.reason
