"""The graph, the envelope, and what counts as current."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.errors import CorruptArtifact, InvalidInput
from atelier_dagster.factory.lineage import (
    ASSETS,
    JOBS,
    UPSTREAM,
    VALUE_TYPES,
    Artifact,
    History,
    parse_artifact,
)
from atelier_dagster.factory.plan import PlanDocument
from tests.support.journey import Journey


def artifact(
    asset: str = "plan_document", inputs: dict[str, str] | None = None, feedback: dict[str, str] | None = None
) -> Artifact[PlanDocument]:
    value = PlanDocument(applies=False)
    return Artifact[PlanDocument](
        asset=asset, ticket="local~demo~shop~1", cycle=1, inputs=inputs or {}, feedback=feedback or {}, value=value
    )


def delivered() -> Journey:
    journey = Journey()
    journey.start()
    return journey


def test_every_asset_has_inputs_before_it_a_type_and_one_job() -> None:
    for asset in ASSETS:
        assert all(ASSETS.index(upstream) < ASSETS.index(asset) for upstream in UPSTREAM[asset])
    assert set(VALUE_TYPES) == set(ASSETS)
    assert [asset for job in JOBS.values() for asset in job] == list(ASSETS)


def test_hash_does_not_depend_on_the_order_of_inputs() -> None:
    one = artifact(inputs={"plan": "a", "architecture_review": "b"})
    assert one.sha256 == artifact(inputs={"architecture_review": "b", "plan": "a"}).sha256


def test_hash_covers_the_feedback() -> None:
    assert artifact().sha256 != artifact(feedback={"approval": "a"}).sha256


def test_artifact_survives_storage() -> None:
    stored = artifact()
    read = parse_artifact("plan_document", stored.canonical())
    assert read.sha256 == stored.sha256
    assert isinstance(read.value, PlanDocument)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\xff",
        artifact().canonical() + b" ",
        artifact(asset="ticket").canonical(),
        json.dumps(json.loads(artifact().canonical())).encode(),
    ],
)
def test_what_is_no_canonical_artifact_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptArtifact):
        parse_artifact("plan_document", data)


@given(st.binary())
def test_arbitrary_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptArtifact):
        parse_artifact("plan_document", data)


def test_unknown_asset_is_refused() -> None:
    with pytest.raises(InvalidInput):
        parse_artifact("nothing", b"{}")
    with pytest.raises(InvalidInput):
        Journey().history.current("nothing")


def test_history_orders_what_it_is_given() -> None:
    history = delivered().history
    assert History(ticket=history.ticket, entries=history.entries[::-1]).entries == history.entries


@pytest.mark.parametrize("asset", [asset for asset in JOBS["deliver"] if asset != "pull_request"])
def test_other_content_makes_everything_below_stale(asset: str) -> None:
    """Whatever the asset, materializing it with other content takes everything that rests on it out of the current."""
    journey = delivered()
    entry = journey.history.current(asset)
    assert entry
    changed = entry.artifact.model_copy(update={"attempt": 9})
    journey.entries.append(entry.of(changed, 10_000))
    below = {asset}
    for other in ASSETS:
        if below & set(UPSTREAM[other]):
            below.add(other)
    current = set(journey.history.current_assets())
    assert current == (set(JOBS["deliver"]) - below) | {asset}
    for stale in below - {asset} - {"approval", "merge", "knowledge", "qa_report", "outcome"}:
        reason = journey.history.stale_reason(stale)
        assert reason
        assert f"the current one is {changed.sha256[:12]}" in reason


def test_same_content_again_changes_nothing() -> None:
    journey = delivered()
    before = journey.history.current_assets()
    for asset in JOBS["deliver"]:
        journey.run((asset,))
    assert journey.history.current_assets() == before


def test_artifact_that_did_not_record_an_input_is_stale() -> None:
    journey = delivered()
    entry = journey.history.current("diff")
    assert entry
    journey.entries.append(entry.of(entry.artifact.model_copy(update={"inputs": {}}), 10_000))
    assert journey.history.current("diff") is None


def test_stale_reason_names_what_to_materialize_first() -> None:
    journey = Journey()
    journey.run(("ticket",))
    assert journey.history.stale_reason("ticket") is None
    assert (journey.history.stale_reason("merge") or "").endswith("; materialize analysis")


def hashes(journey: Journey) -> dict[str, str]:
    found = {asset: journey.history.current(asset) for asset in JOBS["deliver"]}
    return {asset: entry.sha256 for asset, entry in found.items() if entry}


def test_final_merge_freezes_what_it_was_made_from() -> None:
    journey = delivered()
    journey.decide(Action.APPROVE)
    journey.run(("approval", "merge"), job="release")
    before = hashes(journey)
    journey.said.body, journey.said.wording = "another", "words"
    for asset in ("ticket", "analysis", "plan"):
        journey.run((asset,))
    assert hashes(journey) == before
    assert set(before) == set(JOBS["deliver"])
    assert journey.run(("knowledge", "qa_report")).status == "success"


def test_merge_that_did_not_happen_never_hides_one_that_did() -> None:
    journey = delivered()
    journey.decide(Action.APPROVE)
    journey.run(("approval", "merge"), job="release")
    merged = journey.current("merge")
    journey.materialize("merge", by_hand=merged.model_copy(update={"merged": False, "reason": "again"}))
    assert journey.current("merge").merged
