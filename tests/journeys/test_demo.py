"""`atelier demo` as a stranger runs it: one command, whole journeys, nothing left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import dagster as dg
import pytest

from atelier_dagster.cli.home import dagster_directory
from atelier_dagster.demo import catalogue
from atelier_dagster.factory.change import Changes, DiffStat, Merge, PullRequest, QaReport
from atelier_dagster.factory.lineage import History
from atelier_dagster.factory.messages import plain
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.factory.verdict import QaDecision, Review
from tests.support.installation import recorded
from tests.support.opencode import opencode_binary
from tests.support.processes import processes_of

pytestmark = [pytest.mark.journey, pytest.mark.timeout(1500), pytest.mark.long]

_LIMIT = 1400.0
_GONE_WITHIN = 20.0


def command(*arguments: str) -> tuple[list[str], Mapping[str, str]]:
    """Command line and environment of a demo."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ATELIER_", "DAGSTER_"))}
    argv = [sys.executable, "-m", "atelier_dagster.cli", "demo", "--exit", "--time-limit", "1300", *arguments]
    return argv, {**clean, "ATELIER_AGENT_BINARY": str(opencode_binary())}


def demo(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a demo in a directory of its own, to its end."""
    argv, env = command(*arguments)
    return subprocess.run(
        argv, cwd=place, env=env, capture_output=True, text=True, timeout=_LIMIT, check=False, stdin=subprocess.DEVNULL
    )


def assert_nothing_left(place: Path) -> None:
    """No process has to do with the directory any more, and no workshop is in it."""
    deadline, pause = time.monotonic() + _GONE_WITHIN, threading.Event()
    while (left := processes_of(place)) and time.monotonic() < deadline:
        pause.wait(0.2)
    assert left == []
    assert not list((place / ".atelier" / "demo" / "workshops").glob("[!.]*"))


# ------------------------------------------------------------------------------------------------ every ticket


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where a demo of all tickets ran, and what it printed. It ended well."""
    place = tmp_path_factory.mktemp("demo")
    done = demo(place, "--yes", "--ticket", "all")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "Traceback" not in done.stdout + done.stderr
    return place, done.stdout


@pytest.fixture(scope="module")
def histories(shown: tuple[Path, str]) -> Iterator[Mapping[str, History]]:
    """What is recorded of every ticket."""
    home = shown[0] / ".atelier" / "demo"
    with dg.DagsterInstance.from_config(str(dagster_directory(home))) as instance:
        yield {name: recorded(home, instance, TicketKey.parse(f"local/demo/{name}#1")) for name in catalogue()}


def test_every_ticket_is_merged_and_says_how(shown: tuple[Path, str], histories: Mapping[str, History]) -> None:
    place, text = shown
    assert "A script answers in place of a model" in text
    assert text.count("Every journey ended as it should.") == 2, "tickets that share a stack, and the one that cannot"
    assert "no cost: a script answered" in text
    evidence = re.findall(r"^ *evidence: .* (\S+)$", text, re.MULTILINE)
    assert len(evidence) >= len(catalogue()) - 1
    assert all(Path(path).is_file() for path in evidence)
    for name, history in histories.items():
        merge = history.value("merge", Merge)
        assert merge is not None and merge.merged, name
        assert {run.status for run in history.runs} == {"success"}, name
    assert_nothing_left(place)


def test_only_broken_infrastructure_fails_qa(histories: Mapping[str, History]) -> None:
    for name, history in histories.items():
        report = history.value("qa_report", QaReport)
        assert report is not None
        broken = name == "broken-infra"
        assert report.verdict.verdict is (QaDecision.FAIL if broken else QaDecision.PASS), name
        assert bool(report.evidence) is not broken, name
    assert "does-not-exist" in "".join(_qa(histories["broken-infra"]).verdict.comments)


def test_a_page_is_photographed_where_a_browser_can_be_had(
    shown: tuple[Path, str], histories: Mapping[str, History]
) -> None:
    report = _qa(histories["url-shortener"])
    pictures = [one.object for one in report.evidence if one.object.media_type == "image/png"]
    if shutil.which("chromium") or shutil.which("chromium-browser"):
        (picture,) = pictures
        (stored,) = (shown[0] / ".atelier/demo/artifacts/qa/local~demo~url-shortener~1").glob("*/*-page.png")
        data = stored.read_bytes()
        assert data.startswith(b"\x89PNG\r\n") and len(data) == picture.size
        assert int.from_bytes(data[16:20]) == 1000, "as wide as the window"
        assert len(data) > 6_000, "a blank page is smaller"
    else:
        assert pictures == []
        assert any("no browser is installed" in comment for comment in report.verdict.comments)


def test_each_ticket_shows_what_it_is_there_for(histories: Mapping[str, History]) -> None:
    assert _verdicts(histories["bad-split"], "architecture_review") == ["request_changes", "approve"]
    assert _verdicts(histories["rest-api"], "architecture_review") == ["approve"]
    assert _verdicts(histories["stubborn"], "code_review") == ["request_changes"] * 4
    statuses = [entry.artifact.value.status for entry in histories["failing-tests"].all("test_report")]
    assert statuses == ["failed", "passed"]
    triggered = {name for name, history in histories.items() if _review(history, "security_review").triggered}
    assert triggered == {"auth-module"}
    concerned = {name for name, history in histories.items() if _pull_request(history).concerns}
    assert concerned == {"stubborn"}
    opened = _pull_request(histories["stubborn"])
    assert all(plain(concern) in opened.body for concern in opened.concerns)
    for name in ("two-halves", "bad-split"):
        changes, diff = histories[name].value("changes", Changes), histories[name].value("diff", DiffStat)
        assert changes is not None and len(changes.tasks) == 2
        assert not any(task.out_of_scope for task in changes.tasks)
        assert diff is not None and diff.files == 4


def _qa(history: History) -> QaReport:
    report = history.value("qa_report", QaReport)
    assert report is not None
    return report


def _pull_request(history: History) -> PullRequest:
    opened = history.value("pull_request", PullRequest)
    assert opened is not None
    return opened


def _review(history: History, asset: str) -> Review:
    review = history.value(asset, Review)
    assert review is not None
    return review


def _verdicts(history: History, asset: str) -> list[str]:
    return [entry.artifact.value.verdict.verdict.value for entry in history.all(asset)]


# --------------------------------------------------------------------------------------------- untimely endings


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_interrupted_at_work_it_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    argv, env = command("--yes", "--ticket", "rest-api")
    with subprocess.Popen(
        argv, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        when = ": workshops" if number is signal.SIGINT else "Dagster: waiting"
        assert any(when in line for line in running.stdout)
        for _ in range(3):  # people press it more than once
            running.send_signal(number)
        said = running.stdout.read() + running.stderr.read()
        assert running.wait(60) == 128 + number
    assert "Traceback" not in said
    assert_nothing_left(tmp_path)


def test_what_takes_too_long_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    done = demo(tmp_path, "--yes", "--time-limit", "15")
    assert done.returncode == 1
    assert "[TIMED_OUT]" in done.stderr
    assert "--time-limit" in done.stderr
    assert "Traceback" not in done.stderr
    assert_nothing_left(tmp_path)


def test_an_unknown_ticket_is_refused_at_once(tmp_path: Path) -> None:
    done = demo(tmp_path, "--ticket", "nonsense")
    assert done.returncode == 1
    assert "url-shortener" in done.stderr
