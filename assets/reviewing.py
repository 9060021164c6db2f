"""Reviewing: three reviews of the same diff in one concurrent step, and the gate behind them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from assets._desk import generation, usage_metadata
from atelier_dagster.delivery.consult import Consultant
from atelier_dagster.factory.change import Changes, DiffStat, Integration, ReviewGate, TestedDiff, TestReport
from atelier_dagster.factory.diff import OPS_PATTERNS, SECURITY_PATTERNS, matching, parts_for_review
from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.factory.lineage import Artifact
from atelier_dagster.factory.plan import ApprovedPlan
from atelier_dagster.factory.prompts import render
from atelier_dagster.factory.routing import review_gate_ruling
from atelier_dagster.factory.ticket import Analysis, Ticket
from atelier_dagster.factory.verdict import Decision, Review, ReviewVerdict, parse_review
from atelier_dagster.orchestration.partitions import tickets_partitions
from atelier_dagster.orchestration.step import (
    IO_MANAGER,
    OWNERS,
    Made,
    as_output,
    guarded,
    journey_asset,
    plain_signature,
    read_history,
)
from resources.artifacts import ArtifactsResource
from resources.llm import LlmResource
from resources.policy import PolicyResource

_PART_CHARACTERS = 60_000
_PARTS_AT_ONCE = 4

_ROLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "code_review": ("code", ()),
    "security_review": ("security", SECURITY_PATTERNS),
    "ops_review": ("ops", OPS_PATTERNS),
}

_DESCRIPTIONS = {
    "code_review": "Does the diff answer the ticket, without regressions or dead code? Always asked.",
    "security_review": "Is the change safe? Asked only when a changed path looks sensitive (auth, secrets, tokens).",
    "ops_review": "Can the change be deployed? Asked only when a changed path is infrastructure or a migration.",
}


@dataclass(frozen=True)
class Dossier:
    """What every reviewer reads. `text` is None when the diff cannot be had."""

    ticket: Ticket
    analysis: Analysis
    diff: DiffStat
    text: str | None


@dg.multi_asset(
    name="reviews",
    outs={
        name: dg.AssetOut(
            description=_DESCRIPTIONS[name],
            group_name="reviewing",
            kinds={"llm"},
            owners=OWNERS,
            io_manager_key=IO_MANAGER,
            is_required=False,
        )
        for name in _ROLES
    },
    partitions_def=tickets_partitions,
    can_subset=True,
)
@plain_signature
async def reviews(
    context: dg.AssetExecutionContext,
    ticket: Artifact[Ticket],
    analysis: Artifact[Analysis],
    diff: Artifact[DiffStat],
    tested_diff: Artifact[TestedDiff],
    llm: LlmResource,
    artifacts: ArtifactsResource,
) -> AsyncIterator[Any]:
    """The reviews that were selected, all at once; each is materialized when it is there."""
    inputs: dict[str, Artifact[Any]] = {
        "ticket": ticket,
        "analysis": analysis,
        "diff": diff,
        "tested_diff": tested_diff,
    }
    history = await read_history(context, artifacts.store())
    dossier = Dossier(ticket.value, analysis.value, diff.value, await _diff_text(artifacts, diff.value))
    started = time.monotonic()

    async def one(name: str) -> tuple[str, Made | None]:
        made = generation(history, name, inputs)
        desk = Consultant(llm.gateway(), artifacts.objects(), context.partition_key, made)
        return name, await guarded(context, _review(name, dossier, desk))

    failure: dg.Failure | None = None
    for finished in asyncio.as_completed([one(key.path[-1]) for key in sorted(context.selected_asset_keys)]):
        try:
            name, made = await finished
        except dg.Failure as error:  # the other answers are paid for: keep them, then fail
            failure = error
            continue
        if made is not None:
            yield as_output(context, name, made, inputs, started, output_name=name)
    if failure is not None:
        raise failure


async def _diff_text(artifacts: ArtifactsResource, diff: DiffStat) -> str | None:
    try:
        return (await artifacts.store().get_object(diff.text)).decode(errors="replace")
    except AtelierError:  # the verdicts say it: a diff that cannot be had is a concern, not a stop
        return None


async def _review(name: str, dossier: Dossier, desk: Consultant) -> Made:
    role, patterns = _ROLES[name]
    matched = matching(dossier.diff.paths, patterns) if patterns else ()
    if patterns and not matched:
        verdict = ReviewVerdict(verdict=Decision.APPROVE)
        return Made(Review(role=role, triggered=False, verdict=verdict, patterns=patterns))
    if dossier.text is None:
        verdict = ReviewVerdict(verdict=Decision.APPROVE, concern="the diff could not be read, so nothing was reviewed")
        return Made(Review(role=role, triggered=True, verdict=verdict, patterns=patterns, matched=matched))
    parts, unreviewed = parts_for_review(dossier.text, _PART_CHARACTERS)
    verdict = merge_verdicts(await _ask_parts(role, dossier, desk, parts, unreviewed))
    review = Review(
        role=role,
        triggered=True,
        verdict=verdict,
        patterns=patterns,
        matched=matched,
        parts=len(parts),
        unreviewed=unreviewed,
    )
    return Made(review, metadata=usage_metadata(desk.usage))


async def _ask_parts(
    role: str, dossier: Dossier, desk: Consultant, parts: tuple[str, ...], unreviewed: tuple[str, ...]
) -> list[ReviewVerdict]:
    slots = asyncio.Semaphore(_PARTS_AT_ONCE)

    async def ask(number: int, part: str) -> ReviewVerdict:
        prompt = render(
            role,
            ticket=dossier.ticket,
            analysis=dossier.analysis,
            diff=part,
            paths=dossier.diff.paths,
            part=number,
            parts=len(parts),
            unreviewed=unreviewed,
        )
        async with slots:
            return parse_review(await desk.ask(role, prompt))

    return list(await asyncio.gather(*(ask(number, part) for number, part in enumerate(parts, 1))))


def merge_verdicts(verdicts: list[ReviewVerdict]) -> ReviewVerdict:
    """One verdict from those on the parts: refused if any part is; every comment and concern is kept."""
    if not verdicts:
        return ReviewVerdict(verdict=Decision.APPROVE, concern="no part of the diff could be reviewed")
    refused = any(verdict.refused for verdict in verdicts)
    concerns = dict.fromkeys(verdict.concern for verdict in verdicts if verdict.concern)
    return ReviewVerdict(
        verdict=Decision.REQUEST_CHANGES if refused else Decision.APPROVE,
        comments=tuple(dict.fromkeys(comment for verdict in verdicts for comment in verdict.comments)),
        concern="; ".join(concerns),
    )


@journey_asset(kinds={"python"}, gate=True)
async def review_gate(
    context: dg.AssetExecutionContext,
    approved_plan: Artifact[ApprovedPlan],
    changes: Artifact[Changes],
    integration: Artifact[Integration],
    diff: Artifact[DiffStat],
    test_report: Artifact[TestReport],
    tested_diff: Artifact[TestedDiff],
    code_review: Artifact[Review],
    security_review: Artifact[Review],
    ops_review: Artifact[Review],
    artifacts: ArtifactsResource,
    policy: PolicyResource,
) -> Made | None:
    """Gate: opens when every reviewer approves, or when the budget of reviews is spent. Carries every outstanding
    concern of the journey to the human."""
    ruling = review_gate_ruling(await read_history(context, artifacts.store()), policy.policy())
    if not ruling.open:
        context.log.info(f"gate stays closed: {ruling.reason}")
        return None
    return Made(ReviewGate(head=diff.value.head, overridden=ruling.overridden, concerns=ruling.concerns))
