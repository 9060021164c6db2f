"""Asks the person at the terminal to decide, or decides for `--yes`. The decision goes the way of `atelier approve`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax

from atelier_dagster.cli.demo.journey import Journey
from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.budgets import REVIEWS
from atelier_dagster.factory.change import DiffStat, PullRequest, TestReport
from atelier_dagster.factory.plan import Plan
from atelier_dagster.factory.verdict import Review

_FILES = 20
_DIFF_CHARACTERS = 20_000


@dataclass(frozen=True)
class Choice:
    """What the person decided; `action` None: nothing for now."""

    action: Action | None
    reason: str = ""


def describe_pull_request(journey: Journey) -> str:
    """What one decides about, as markup: title, files, tests, every outstanding concern."""
    value, diff = journey.value("pull_request"), journey.value("diff")
    assert isinstance(value, PullRequest)
    lines = [
        f"[bold]Pull request #{value.number}: {escape(value.title)}[/]",
        f"  {escape(value.url)}",
        f"  head {value.head[:12]} on {escape(value.branch)}, into {escape(value.base_branch)}",
    ]
    if isinstance(diff, DiffStat):
        lines.append(f"  {diff.files} files, +{diff.insertions} -{diff.deletions}")
        lines += [f"    {escape(path)}" for path in diff.paths[:_FILES]]
        lines += [f"    and {len(diff.paths) - _FILES} more"] if len(diff.paths) > _FILES else []
    lines += [f"  {escape(text)}" for text in _examined(journey)]
    if value.concerns:
        lines += ["  [yellow]Outstanding concerns:[/]", *(f"    - {escape(text)}" for text in value.concerns)]
    else:
        lines.append("  No outstanding concerns.")
    return "\n".join(lines)


def _examined(journey: Journey) -> Iterator[str]:
    """What was tested and reviewed, what was not, and what it cost."""
    report = journey.value("test_report")
    yield f"tests: {report.status.value if isinstance(report, TestReport) else 'not run'}"
    reviews = [review for asset, _ in REVIEWS if isinstance(review := journey.value(asset), Review)]
    said = ", ".join(f"{review.role} {review.verdict.verdict.value}" for review in reviews if review.triggered)
    yield f"reviews: {said or 'none'}"
    left_out = sorted({path for review in reviews for path in review.unreviewed})
    if left_out:
        yield f"not reviewed: {', '.join(left_out[:_FILES])}" + (" ..." if len(left_out) > _FILES else "")
    cost = "" if journey.cost_usd is None else f", {journey.cost_usd:.4f} USD"
    yield f"so far: {journey.tokens} tokens{cost}"


def describe_plan(journey: Journey) -> str:
    """The plan that waits, as markup."""
    value = journey.value("plan")
    assert isinstance(value, Plan)
    tasks = [f"  - {escape(task.title)}: {escape(', '.join(task.scope))}" for task in value.tasks]
    return "\n".join([f"[bold]The plan has {len(value.tasks)} task(s)[/]", *tasks])


def ask(console: Console, journey: Journey, read_diff: Callable[[DiffStat], bytes]) -> Choice:
    """Show and ask until there is an answer. End of input means no decision."""
    is_plan = journey.subject is not None and journey.subject[0] == "plan"
    console.print()
    console.print(describe_plan(journey) if is_plan else describe_pull_request(journey))
    options = "[a]pprove, [l]ater" if is_plan else "[a]pprove, [r]eject, request [c]hanges, show the [d]iff, [l]ater"
    while True:
        try:
            answer = console.input(escape(f"{options}? ")).strip().lower()
        except EOFError:
            return Choice(None)
        if answer in ("a", "approve", "y", "yes"):
            return Choice(Action.APPROVE)
        if answer in ("l", "later", ""):
            return Choice(None)
        if is_plan:
            continue
        if answer in ("r", "reject"):
            return Choice(Action.REJECT, console.input("Why? ").strip())
        if answer in ("c", "changes"):
            reason = console.input("What is to change? ").strip()
            if reason:
                return Choice(Action.REQUEST_CHANGES, reason)
        if answer in ("d", "diff"):
            _show_diff(console, journey, read_diff)


def _show_diff(console: Console, journey: Journey, read_diff: Callable[[DiffStat], bytes]) -> None:
    diff = journey.value("diff")
    if isinstance(diff, DiffStat):
        text = read_diff(diff).decode(errors="replace")
        console.print(Syntax(text[:_DIFF_CHARACTERS], "diff", background_color="default"))
        if len(text) > _DIFF_CHARACTERS:
            console.print(f"... and {len(text) - _DIFF_CHARACTERS} more characters")
