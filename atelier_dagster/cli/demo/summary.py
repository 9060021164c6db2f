"""How a demo ended: assets, attempts, verdicts, links, evidence, cost, and what is not as it should be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from atelier_dagster.cli import output
from atelier_dagster.cli.demo.journey import Journey
from atelier_dagster.cli.standing import partition_url, run_url
from atelier_dagster.demo import Expectation
from atelier_dagster.factory.budgets import REVIEWS, architecture_refusals, correction_refusals, review_refusals
from atelier_dagster.factory.change import Merge, Outcome, PullRequest, QaReport
from atelier_dagster.factory.lineage import History
from atelier_dagster.factory.plan import ApprovedPlan
from atelier_dagster.factory.verdict import Review


def differences(journey: Journey, expected: Expectation, *, exactly: bool) -> tuple[str, ...]:
    """What is not as expected. `exactly`: also the counts of refusals, which only a script can promise."""
    history = journey.history
    if history is None or not journey.ended:
        return (journey.stuck or f"it did not end: {journey.in_words()}",)
    found = list(_ending(history, expected))
    if exactly:
        found += _counts(history, expected)
    return tuple(found)


def _ending(history: History, expected: Expectation) -> Iterator[str]:
    merge, qa = history.value("merge", Merge), history.value("qa_report", QaReport)
    if expected.merged != bool(merge and merge.merged):
        yield (
            "it should have been merged, and was not" if expected.merged else "it was merged, and should not have been"
        )
    if expected.merged and (qa is None or qa.verdict.verdict.value != expected.qa):
        said = qa.verdict.verdict.value if qa else "nothing"
        yield f"QA said {said}, expected was {expected.qa}" + _why(qa)


def _why(qa: QaReport | None) -> str:
    comments = (*qa.verdict.comments, *qa.problems) if qa else ()
    return f" ({'; '.join(comments)[:300]})" if comments else ""


def _counts(history: History, expected: Expectation) -> Iterator[str]:
    plan = history.value("approved_plan", ApprovedPlan)
    pull_request = history.value("pull_request", PullRequest)
    triggered = {asset.removesuffix("_review") for asset, _ in REVIEWS if _triggered(history, asset)}
    pairs = {
        "tasks": (len(plan.plan.tasks) if plan else 0, expected.tasks),
        "refused plans": (architecture_refusals(history), expected.refused_plans),
        "deliveries with failed tests": (correction_refusals(history, 1), expected.failed_tests),
        "refused deliveries": (review_refusals(history, 1), expected.refused_reviews),
        "triggered reviews": (", ".join(sorted(triggered)), ", ".join(sorted(expected.reviews))),
        "outstanding concerns": (bool(pull_request and pull_request.concerns), expected.concerns),
    }
    for what, (actual, wanted) in pairs.items():
        if actual != wanted:
            yield f"{what}: {actual}, expected {wanted}"


def _triggered(history: History, asset: str) -> bool:
    review = history.value(asset, Review)
    return bool(review and review.triggered)


def show(console: Console, journey: Journey, url: str, home: Path) -> None:
    """One journey's summary."""
    console.print()
    outcome = journey.value("outcome")
    ending = outcome.ending.value if isinstance(outcome, Outcome) else "did not end"
    console.print(f"[bold]{escape(journey.name)}[/]  {escape(str(journey.key))}  {output.styled(ending)}")
    rows = [
        (escape(m.asset), m.which, output.styled(m.verdict), escape(m.remark), escape(m.duration), m.run_id[:8])
        for m in journey.made
    ]
    columns = ("asset", "cycle.round.attempt", "verdict", "", "duration", "run")
    console.print(output.table(columns, rows))
    for run in journey.runs.values():
        console.print(f"  {escape(run.job)}: {output.styled(run.status)}  {escape(run_url(url, run.run_id))}")
    last = journey.made[-1].asset if journey.made else "ticket"
    console.print(f"  in the UI: {escape(partition_url(url, last, journey.key.partition))}")
    for line in (*_pull_request_lines(journey), *_evidence_lines(journey, home)):
        console.print(f"  {escape(line)}", soft_wrap=True)


def _pull_request_lines(journey: Journey) -> Iterator[str]:
    value, merge = journey.value("pull_request"), journey.value("merge")
    if isinstance(value, PullRequest):
        yield f"pull request: #{value.number} {value.title}  {value.url}"
        yield from (f"concern: {text}" for text in value.concerns)
    if isinstance(merge, Merge) and merge.merged:
        yield f"merged as {merge.commit}"


def _evidence_lines(journey: Journey, home: Path) -> Iterator[str]:
    report = journey.value("qa_report")
    if not isinstance(report, QaReport):
        return
    for comment in report.verdict.comments:
        yield f"QA: {comment}"
    for evidence in report.evidence:
        where = home / "artifacts" / evidence.object.key if evidence.uploaded else "not uploaded"
        yield f"evidence: {evidence.path} ({evidence.object.media_type}, {evidence.object.size} bytes)  {where}"
    for problem in report.problems:
        yield f"problem: {problem}"


def total(console: Console, journeys: list[Journey], seconds: float, *, scripted: bool) -> None:
    """What all journeys took together."""
    tokens = sum(journey.tokens for journey in journeys)
    costs = [journey.cost_usd for journey in journeys if journey.cost_usd is not None]
    if scripted:
        cost = "no cost: a script answered, not a model"
    else:
        cost = f"${sum(costs):.4f}" if costs else "cost unknown: the endpoint does not tell it"
    console.print(f"\n{len(journeys)} journey(s) in {seconds:.0f} s, {tokens} tokens, {cost}")
