"""What the demo shows, and how it finds that a journey did not end as it should."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel
from rich.console import Console

from atelier_dagster.cli.demo import ask, show, summary
from atelier_dagster.cli.demo.journey import Journey, Made, RunSeen
from atelier_dagster.demo import Expectation
from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.change import DiffStat, Ending, TestReport, TestStatus
from atelier_dagster.factory.lineage import Artifact, Entry, History
from atelier_dagster.factory.routing import DoneStep, RunStep, WaitKind, WaitStep
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.factory.verdict import Decision
from tests.support.recorded import diff, pull_request, review, ticket

KEY = TicketKey.parse("local/demo/shop#1")
HEAD = "2" * 40


def made(asset: str, attempt: int = 1, verdict: str = "", remark: str = "") -> Made:
    return Made(asset, "f" * 64, "run-1234567", 1.0, 1, 1, attempt, verdict, remark, "0.1 s", 10)


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=160, force_terminal=False), out


def proposed(*concerns: str, **more: BaseModel) -> Journey:
    """A journey whose pull request waits for a decision."""
    journey = Journey("shop", KEY)
    entries: list[Entry] = []
    opened = pull_request(1, HEAD, *concerns)
    values: dict[str, BaseModel] = {"ticket": ticket(KEY), "diff": diff(HEAD), **more, "pull_request": opened}
    for seq, (asset, value) in enumerate(values.items()):
        artifact = Artifact[type(value)](asset=asset, ticket=KEY.partition, cycle=1, value=value)
        entries.append(Entry.of(artifact, seq))
    journey.history = _AllCurrent(ticket=KEY.partition, entries=tuple(entries))
    journey.step = WaitStep(kind=WaitKind.APPROVAL, reason="waits")
    return journey


def typed(*answers: str) -> Callable[[object], str]:
    """What a person types, then the end of input."""
    left = iter(answers)

    def read(_: object = "") -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return read


class _AllCurrent(History):
    """Everything recorded counts."""

    def current(self, asset: str) -> Entry | None:
        return self.latest(asset)


def test_a_line_for_what_a_person_wants_to_know() -> None:
    assert show.news_line(made("plan", 2, remark="3 tasks")) == "plan (attempt 2): 3 tasks"
    assert show.news_line(made("code_review", verdict="approve")) == "code_review: approve"
    assert "FAILED" in show.news_line(RunSeen("r" * 10, "deliver", "failure"))
    assert show.news_line(RunSeen("r", "deliver", "success")) == ""


def test_without_a_terminal_there_are_plain_lines() -> None:
    out, text = console()
    journey = Journey("shop", KEY)
    with show.Display(out, [journey]) as display:
        display.news(journey, made("plan", remark="[bold]odd[/]"))
        display.refresh()
    assert text.getvalue().endswith("shop: plan: [bold]odd[/]\n")
    assert "\x1b" not in text.getvalue()


def test_the_table_shows_every_journey() -> None:
    journey = Journey("shop", KEY, made=[made("plan", 2), made("test_report", verdict="failed"), made("odd")])
    out, text = console()
    out.print(show.progress_table([journey]))
    assert "plan x2" in text.getvalue().replace("planx2", "plan x2")
    assert "tests" in text.getvalue()


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (None, "waits to be taken in"),
        (WaitStep(kind=WaitKind.NOT_STARTED, reason=""), "waits to be taken in"),
        (WaitStep(kind=WaitKind.FAILURES, reason="3 runs"), "stands still: failures: 3 runs"),
        (
            RunStep(job="deliver", assets=("plan",), reason="again", delay_seconds=10),
            "deliver follows after 10 s: again",
        ),
        (DoneStep(ending=Ending.MERGED, reason=""), "ended: merged"),
    ],
)
def test_a_journey_says_what_it_does(step: RunStep | WaitStep | DoneStep | None, words: str) -> None:
    assert Journey("shop", KEY, step=step).in_words() == words


def test_a_decision_is_asked_for_once() -> None:
    journey = proposed()
    subject = journey.subject
    assert subject is not None
    journey.decided.add(subject[1])
    assert journey.subject is None


def test_a_person_sees_title_files_and_every_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", typed("what?", "d", "a"))
    out, text = console()

    def read(_: DiffStat) -> bytes:
        return b"+one [red]line[/]\n"

    choice = ask.ask(out, proposed("[Code] it is [red]slow[/]"), read)
    assert choice == ask.Choice(Action.APPROVE)
    shown = text.getvalue()
    assert all(part in shown for part in ("Sort the list", "a.py", "[Code] it is [red]slow[/]", "+one [red]line[/]"))


def test_a_person_sees_what_was_examined_and_what_was_not() -> None:
    refused = review("code", Decision.REQUEST_CHANGES).model_copy(update={"unreviewed": ("logo.png",)})
    journey = proposed(test_report=TestReport(status=TestStatus.FAILED, head=HEAD), code_review=refused)
    journey.made = [made("code_review")]
    shown = ask.describe_pull_request(journey)
    for words in ("tests: failed", "reviews: code request_changes", "not reviewed: logo.png", "so far: 10 tokens"):
        assert words in shown
    assert "tests: not run" in ask.describe_pull_request(proposed())


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (["r", "no"], ask.Choice(Action.REJECT, "no")),
        (["c", "", "c", "rename"], ask.Choice(Action.REQUEST_CHANGES, "rename")),
        (["l"], ask.Choice(None)),
        ([], ask.Choice(None)),
    ],
)
def test_answers(given: list[str], choice: ask.Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", typed(*given))
    assert ask.ask(console()[0], proposed(), lambda _: b"") == choice


def test_what_did_not_end_differs() -> None:
    journey = Journey("shop", KEY, step=WaitStep(kind=WaitKind.FAILURES, reason="3 runs"))
    assert summary.differences(journey, Expectation(), exactly=True) == ("failures: 3 runs",)
    assert "did not end" in summary.differences(Journey("shop", KEY), Expectation(), exactly=True)[0]


def test_every_difference_is_named() -> None:
    journey = proposed("a concern")
    journey.step = DoneStep(ending=Ending.REJECTED, reason="")
    found = "\n".join(summary.differences(journey, Expectation(tasks=2, refused_plans=1), exactly=True))
    for words in ("should have been merged", "QA said nothing", "tasks: 0, expected 2", "refused plans: 0, expected 1"):
        assert words in found
    assert "outstanding concerns: True, expected False" in found
    assert "tasks" not in "\n".join(summary.differences(journey, Expectation(), exactly=False))


def test_a_summary_of_a_journey_that_hardly_began() -> None:
    out, text = console()
    journey = proposed()
    journey.made = [made("ticket"), made("review_gate", verdict="open")]
    journey.runs = {"r": RunSeen("r", "deliver", "failure")}
    summary.show(out, journey, "http://127.0.0.1:3000", Path("home"))
    summary.total(out, [journey], 3.0, scripted=True)
    shown = text.getvalue()
    assert "http://127.0.0.1:3000/runs/r" in shown
    assert "partition=local~demo~shop~1" in shown
    assert "a script answered, not a model" in shown
