"""What a step leaves and finds: its artifact, its ledger line, its failure; and inputs only while they are current."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from atelier_dagster.artifacts import Ledger
from atelier_dagster.factory.errors import NothingChanged, Unavailable
from atelier_dagster.factory.lineage import Artifact
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.history import HistoryReader
from tests.support.lines import Line, failure, made, skipped
from tests.support.ticks import Ticks


@pytest.fixture
def line(house: Ticks) -> Line:
    return Line(house)


def error_tag(line: Line, result: dg.ExecuteInProcessResult) -> str:
    run = line.house.instance.get_run_by_id(result.run_id)
    assert run
    return run.tags.get(tags.ERROR, "")


def stored(line: Line, asset: str) -> list[Path]:
    return sorted((line.house.home / "artifacts" / "artifacts" / line.partition / asset).glob("*.json"))


def test_what_a_step_makes_is_kept_under_its_hash_with_what_it_read(line: Line) -> None:
    result = line.run()
    assert result.success
    assert made(result) == ["ticket", "analysis", "plan"]
    history = asyncio.run(HistoryReader(line.house.instance, line.house.store, line.partition).read())
    assert history.current_assets() == ("ticket", "analysis", "plan")
    ticket, analysis, plan = (history.current(name) for name in ("ticket", "analysis", "plan"))
    assert ticket and analysis and plan
    assert plan.artifact.inputs == {"ticket": ticket.sha256, "analysis": analysis.sha256}
    assert (plan.artifact.cycle, plan.artifact.round, plan.artifact.attempt) == (1, 1, 3)
    assert [path.stem for path in stored(line, "plan")] == [plan.sha256]
    event = result.get_asset_materialization_events()[0].materialization
    assert (event.tags or {})[tags.DATA_VERSION] == ticket.sha256
    assert event.metadata["sha256"].value == ticket.sha256
    assert "duration" in event.metadata


def test_the_ledger_keeps_what_an_auditor_wants_and_nothing_else(line: Line) -> None:
    result = line.run("ticket")
    (entry,) = asyncio.run(Ledger(line.objects).entries(line.partition))
    assert (entry.asset, entry.cycle, entry.run_id) == ("ticket", 1, result.run_id)
    assert {"tokens in": 7, "cost (USD)": 0.25}.items() <= dict(entry.metadata).items()
    assert "secret" not in entry.metadata


def test_the_same_result_again_is_the_same_artifact(line: Line) -> None:
    line.run()
    again = line.run("ticket", "analysis")
    assert again.success
    assert len(stored(line, "ticket")) == len(stored(line, "analysis")) == 1


def test_a_closed_gate_skips_what_is_below_and_the_run_is_green(line: Line) -> None:
    line.open = False
    result = line.run()
    assert result.success
    assert made(result) == ["ticket"]
    assert "plan" in skipped(result)


def test_after_a_closed_gate_nothing_below_reuses_the_older_opening(line: Line) -> None:
    line.run()
    line.title, line.open = "Another", False
    line.run("ticket", "analysis")
    result = line.run("plan")
    assert not result.success
    description, metadata = failure(result)
    assert metadata["code"] == error_tag(line, result) == "STALE_INPUT"
    assert "materialize analysis" in metadata["what to do"]
    assert "analysis no longer follows" in description


def test_an_input_that_was_never_made_says_what_to_materialize(line: Line) -> None:
    result = line.run("plan")
    _, metadata = failure(result)
    assert metadata["code"] == error_tag(line, result) == "NOT_FOUND"
    assert "materialize ticket" in metadata["what to do"]


def test_damaged_bytes_are_never_loaded(line: Line) -> None:
    line.run()
    (path,) = stored(line, "ticket")
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"Sort", b"Tort"))
    line.read.clear()
    result = line.run("analysis")
    assert failure(result)[1]["code"] == error_tag(line, result) == "CORRUPT_ARTIFACT"
    assert not line.read


@pytest.mark.parametrize(
    ("error", "later"), [(NothingChanged("nothing", fix="say more"), False), (Unavailable("gone", fix="wait"), True)]
)
def test_a_typed_error_becomes_a_readable_failure(line: Line, error: Any, later: bool) -> None:
    line.error = error
    result = line.run("ticket", "analysis")
    description, metadata = failure(result)
    assert description == str(error)
    assert metadata == {"code": error.code, "what to do": error.fix, "may pass later": later}
    assert error_tag(line, result) == error.code


def test_an_error_that_nobody_foresaw_fails_as_it_is(line: Line) -> None:
    line.error = ZeroDivisionError("a bug")  # type: ignore[assignment]
    result = line.run("ticket", "analysis")
    assert not result.success
    assert error_tag(line, result) == ""


def test_a_store_that_cannot_be_written_fails_the_step_with_its_code(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def put(*_: object) -> bool:
        raise Unavailable("no store", fix="wait")

    monkeypatch.setattr("atelier_dagster.artifacts.DirectoryStore.put_if_absent", put)
    result = line.run("ticket")
    assert failure(result)[1]["code"] == error_tag(line, result) == "UNAVAILABLE"
    assert made(result) == []


def count(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    original: Callable[..., Any] = getattr(dg.DagsterInstance, name)
    calls: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(dg.DagsterInstance, name, counted)
    return calls


def test_a_run_reads_the_whole_history_once(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count(monkeypatch, "fetch_materializations")
    assert line.run().success
    assert 0 < len(calls) <= 23  # one look at each asset, however many inputs and steps


def test_what_another_run_makes_meanwhile_is_seen(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count(monkeypatch, "fetch_materializations")
    line.house.run(line.partition)  # started outside of the queue, beside ours
    assert line.run().success
    assert len(calls) > 23


def test_the_inputs_of_a_step_are_typed(line: Line) -> None:
    line.run()
    assert all(isinstance(item, Artifact) for item in line.read)
    assert [type(item.value).__name__ for item in line.read] == ["Ticket", "Ticket", "Analysis"]
