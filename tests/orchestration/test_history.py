"""What counts as a ticket's history, and what it costs."""

from __future__ import annotations

import asyncio

import pytest

from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.errors import NotFound
from atelier_dagster.factory.routing import RunStep
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.history import HistoryReader, active_runs, newest_run
from atelier_dagster.orchestration.launch import follow_request, last_decision, repeated_tags
from atelier_dagster.orchestration.spend import spent_so_far
from atelier_dagster.orchestration.watch import materialized_since
from tests.support.journey import Journey
from tests.support.ticks import Ticks


def test_a_history_is_what_happened_in_its_order(house: Ticks) -> None:
    key, journey = house.ticket(), Journey()
    journey.start()
    journey.decide(Action.APPROVE)
    journey.release()
    house.replay(journey, key)
    found, wanted = house.history(key), journey.history
    assert [entry.asset for entry in found.entries] == [entry.asset for entry in wanted.entries]
    assert [(run.job, run.status) for run in found.runs] == [(run.job, run.status) for run in wanted.runs]
    assert found.current_assets() == wanted.current_assets()


def test_other_tickets_are_other_histories(house: Ticks) -> None:
    one, other, journey = house.ticket(1), house.ticket(2), Journey()
    journey.start()
    house.replay(journey, one)
    assert house.history(other).entries == ()
    assert house.history(other).runs == ()


@pytest.mark.parametrize("version", ["", "f" * 64, "F" * 64, "../../../etc/passwd", "x" * 64, "a" * 63])
def test_what_is_reported_from_outside_without_an_artifact_proves_and_stops_nothing(house: Ticks, version: str) -> None:
    key, journey = house.ticket(), Journey()
    journey.start()
    house.replay(journey, key)
    before = house.history(key).current_assets()
    for asset in ("ticket", "approval", "merge", "no_asset_of_ours"):
        house.report(asset, key.partition, version)
    assert house.history(key).current_assets() == before


def test_an_artifact_of_another_ticket_or_asset_proves_nothing(house: Ticks) -> None:
    one, other, journey = house.ticket(1), house.ticket(2), Journey()
    journey.start()
    house.replay(journey, one)
    opened = house.history(one).current("pull_request")
    assert opened
    house.report("pull_request", other.partition, opened.sha256)
    house.report("merge", one.partition, opened.sha256)
    assert house.history(other).entries == ()
    assert house.history(one).latest("merge") is None


def test_an_artifact_that_a_run_made_and_somebody_lost_is_an_error(house: Ticks) -> None:
    from tests.support.lines import Line

    line = Line(house)
    line.run("ticket")
    for path in (house.home / "artifacts" / "artifacts" / line.partition / "ticket").iterdir():
        path.unlink()
    with pytest.raises(NotFound):
        asyncio.run(HistoryReader(house.instance, house.store, line.partition).read())


def test_runs_are_told_apart_by_what_they_may_still_do(house: Ticks) -> None:
    partition = "local~demo~shop~1"
    assert newest_run(house.instance, partition) is None
    ended, active = house.ended(partition, "cancelled"), house.run(partition, "release")
    house.run("local~demo~shop~2")
    assert [run.run_id for run in active_runs(house.instance, partition)] == [active.run_id]
    newest = newest_run(house.instance, partition)
    assert newest
    assert newest.dagster_run.run_id == active.run_id
    assert ended.run_id != active.run_id


# --------------------------------------------------------------------------------------------------------- news


def test_news_come_in_the_order_of_storage_and_none_is_lost_at_a_page_s_end(house: Ticks) -> None:
    order = ["plan", "outcome", "plan", "plan", "pull_request", "outcome", "plan", "pull_request", "plan"]
    for number, asset in enumerate(order):
        house.report(asset, f"local~demo~shop~{number}", "f" * 64)
    for limit in (1, 2, 3, 100):
        seen: list[str] = []
        cursor = 0
        for _ in range(20):
            news, after = materialized_since(house.instance, ["pull_request", "outcome", "plan"], cursor, limit)
            seen += [item.asset for item in news]
            assert after >= cursor
            cursor = after
        assert seen == order, limit
    assert materialized_since(house.instance, ["plan"], cursor) == ([], cursor)


def test_materializations_without_a_ticket_are_no_news(house: Ticks) -> None:
    import dagster as dg

    house.instance.report_runless_asset_event(dg.AssetMaterialization("plan"))
    news, cursor = materialized_since(house.instance, ["plan"], 0)
    assert (news, cursor > 0) == ([], True)


# -------------------------------------------------------------------------------------------------------- spend


def test_spend_is_the_sum_of_all_attempts_of_one_ticket(house: Ticks) -> None:
    told = {"tokens in": 10, "tokens out": 2, "cost (USD)": 0.5, "model calls": 1}
    for asset in ("plan", "plan", "code_review"):
        house.report(asset, "local~demo~shop~1", "f" * 64, **told)
    house.report("plan", "local~demo~shop~2", "f" * 64, **told)
    spend = spent_so_far(house.instance, "local~demo~shop~1")
    assert (spend.calls, spend.tokens_in, spend.tokens_out, spend.cost_usd) == (3, 30, 6, 1.5)
    assert spend.in_words() == "3 model calls, 30 tokens in, 6 out, $1.5000"


def test_a_cost_that_nobody_told_is_unknown_and_not_nothing(house: Ticks) -> None:
    house.report("plan", "local~demo~shop~1", "f" * 64, **{"tokens in": 10, "model calls": 1})
    spend = spent_so_far(house.instance, "local~demo~shop~1")
    assert spend.cost_usd is None
    assert "$" not in spend.in_words()
    assert list(spend.as_metadata()) == ["total tokens so far"]


def test_figures_that_no_step_reported_count_for_nothing(house: Ticks) -> None:
    for value in ("lots", -5, True, [1]):
        house.report("plan", "local~demo~shop~1", "f" * 64, **{"tokens in": value, "cost (USD)": value})
    spend = spent_so_far(house.instance, "local~demo~shop~1")
    assert (spend.tokens_in, spend.cost_usd) == (0, None)


# ------------------------------------------------------------------------------------------------------- launch


def test_a_run_that_judges_a_decision_is_told_the_last_one_again(house: Ticks) -> None:
    partition = "local~demo~shop~1"
    step = RunStep(job="release", assets=("approval", "merge"), reason="again")
    assert last_decision(house.instance, partition) == ""
    assert follow_request(house.instance, step, partition, "ended") is None
    for number in (1, 2):
        house.run(partition, "release", {tags.DECISION: f"cli:{number}"})
    house.run(partition, "release")
    request = follow_request(house.instance, step, partition, "ended")
    assert request
    assert request.run_key == "ended"
    assert request.run_config == {"ops": {"approval": {"config": {"source": "cli", "id": "2"}}}}
    assert request.tags[tags.AFTER] == "ended"


def test_a_repeated_run_is_told_again_what_it_was_told_by_tags(house: Ticks) -> None:
    run = house.run("local~demo~shop~1", "deliver", {tags.CYCLE: "4", tags.ENDING: "cancelled", "other": "no"})
    step = RunStep(job="deliver", assets=("ticket",), reason="again", repeats=run.run_id)
    assert repeated_tags(house.instance, step) == {tags.CYCLE: "4", tags.ENDING: "cancelled"}
    assert repeated_tags(house.instance, step.model_copy(update={"repeats": "unknown"})) == {}
    assert repeated_tags(house.instance, step.model_copy(update={"repeats": ""})) == {}
