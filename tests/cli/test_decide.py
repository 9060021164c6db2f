"""Decisions made at the command line, on a real local forge, without and with a webserver that answers."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from atelier_dagster.cli.decide import decide
from atelier_dagster.factory.approval import Action, HumanDecision
from atelier_dagster.factory.errors import InvalidInput, NotFound, Refused
from atelier_dagster.factory.lineage import Artifact
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.forges import LocalForge, LocalTracker
from atelier_dagster.settings import load_settings
from tests.support.program import Atelier
from tests.support.recorded import Recorder, plan, pull_request, ticket

KEY = TicketKey.parse("local/acme/shop#1")


def git(place: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", "-C", str(place), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@dataclass(frozen=True)
class Shop:
    """A repository with an open pull request for ticket 1, recorded as the journey would have."""

    forge: LocalForge
    tracker: LocalTracker
    recorder: Recorder
    work: Path
    number: int

    def commit(self, text: str) -> str:
        """Push another commit to the pull request's branch."""
        (self.work / "a.py").write_text(text, "utf-8")
        git(self.work, "commit", "-qam", text)
        git(self.work, "push", "-q", "origin", "atelier/1")
        return git(self.work, "rev-parse", "HEAD")


@pytest.fixture
def shop(home: Path, tmp_path: Path) -> Shop:
    settings = load_settings()
    forge, tracker = LocalForge(home / "forge", bot=settings.bot), LocalTracker(home / "forge", bot=settings.bot)
    work = tmp_path / "work"
    subprocess.run(["git", "init", "-q", "-b", "main", str(work)], check=True)
    (work / "a.py").write_text("1", "utf-8")
    git(work, "add", ".")
    git(work, "commit", "-qm", "first")
    asyncio.run(forge.init(KEY.repo, work))
    asyncio.run(tracker.create_issue(KEY.repo, title="Sort", body="", labels=("atelier",)))
    git(work, "remote", "add", "origin", str(home / "forge" / "acme" / "shop" / "repo.git"))
    git(work, "checkout", "-qb", "atelier/1")
    (work / "a.py").write_text("2", "utf-8")
    git(work, "commit", "-qam", "second")
    git(work, "push", "-q", "origin", "atelier/1")
    opened = asyncio.run(forge.open_pull_request(KEY.repo, head="atelier/1", base="main", title="Sort", body=""))
    recorder = Recorder(home, KEY)
    recorder.record("ticket", ticket(KEY))
    recorder.record("pull_request", pull_request(opened.number, opened.head))
    return Shop(forge, tracker, recorder, work, opened.number)


def decisions(shop: Shop) -> Sequence[HumanDecision]:
    return asyncio.run(shop.forge.decisions(KEY.repo, shop.number))


def test_an_approval_names_the_present_head_and_the_person(shop: Shop, atelier: Atelier) -> None:
    ran = atelier("approve", str(KEY), "--reason", "looks $(good)", "--json")
    assert ran.code == 0, ran.err
    (decision,) = decisions(shop)
    head = git(shop.work, "rev-parse", "HEAD")
    assert (decision.action, decision.head, decision.reason) == (Action.APPROVE, head, "looks $(good)")
    assert decision.may_decide
    assert not decision.is_bot
    assert (ran.json["head"], ran.json["id"], ran.json["run_id"]) == (head, decision.id, "")
    assert "judged when Dagster runs" in ran.json["note"]


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        (("reject", str(KEY), "--reason", "no"), Action.REJECT),
        (("request-changes", str(KEY), "--reason", "rename it"), Action.REQUEST_CHANGES),
    ],
)
def test_other_decisions_are_recorded_as_such(
    shop: Shop, atelier: Atelier, arguments: tuple[str, ...], action: Action
) -> None:
    assert atelier(*arguments).code == 0
    assert [decision.action for decision in decisions(shop)] == [action]


def test_a_moved_head_refuses_the_commit_that_was_looked_at(shop: Shop, atelier: Atelier) -> None:
    seen = git(shop.work, "rev-parse", "HEAD")
    shop.commit("3")
    ran = atelier("approve", str(KEY), "--sha", seen)
    assert ran.code == 1
    assert "[REFUSED]" in ran.err
    assert decisions(shop) == []


@pytest.mark.parametrize("length", [7, 12, 40])
def test_the_head_may_be_named_by_its_beginning(shop: Shop, atelier: Atelier, length: int) -> None:
    head = git(shop.work, "rev-parse", "HEAD")
    assert atelier("approve", str(KEY), "--sha", head[:length]).code == 0


@pytest.mark.parametrize("sha", ["abc", "0" * 40, "HEAD", " "])
def test_what_names_no_commit_decides_nothing(shop: Shop, sha: str) -> None:
    with pytest.raises(Refused):
        asyncio.run(decide(load_settings(), KEY, Action.APPROVE, sha=sha))
    assert decisions(shop) == []


def test_a_closed_pull_request_is_not_decided_about(shop: Shop) -> None:
    asyncio.run(shop.forge.close_pull_request(KEY.repo, shop.number))
    with pytest.raises(Refused, match="is closed"):
        asyncio.run(decide(load_settings(), KEY, Action.APPROVE))


def test_the_last_cycles_pull_request_is_not_decided_about(shop: Shop) -> None:
    shop.recorder.record("ticket", ticket(KEY), cycle=2)
    with pytest.raises(NotFound, match="no pull request"):
        asyncio.run(decide(load_settings(), KEY, Action.APPROVE))


def test_changes_need_a_reason(shop: Shop, atelier: Atelier) -> None:
    assert atelier("request-changes", str(KEY)).code == 2
    with pytest.raises(InvalidInput):
        asyncio.run(decide(load_settings(), KEY, Action.REQUEST_CHANGES, reason="  "))


def test_on_another_forge_people_decide_there(home: Path, atelier: Atelier) -> None:
    ran = atelier("approve", "github/acme/shop#1")
    assert ran.code == 1
    assert "/atelier approve" in ran.err


def test_a_plan_that_waits_is_approved_on_the_ticket(
    shop: Shop, atelier: Atelier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_PLAN_REVIEW", "human")
    waiting = shop.recorder.record("plan", plan("one", "two"), "ticket")
    ran = atelier("approve", str(KEY), "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["subject"], ran.json["head"]) == ("plan", waiting.sha256)
    (comment,) = asyncio.run(shop.tracker.comments(KEY))
    assert comment.body.strip() == f"/atelier approve {waiting.sha256}"
    assert comment.author_may_write
    assert decisions(shop) == []


class Webserver:
    """Answers what a decision asks of Dagster, and keeps the questions."""

    def __init__(self, made: Mapping[str, Artifact[Any]], http: HTTPServer) -> None:
        self.asked: list[dict[str, Any]] = []
        self._made = made
        http.expect_request("/server_info").respond_with_json({"dagster_webserver_version": "1"})
        http.expect_request("/graphql").respond_with_handler(self._answer)

    def _answer(self, request: Request) -> Response:
        body: dict[str, Any] = json.loads(request.get_data())
        self.asked.append(body)
        return Response(json.dumps({"data": self._data(str(body["query"]))}), content_type="application/json")

    def _data(self, query: str) -> dict[str, Any]:
        if "workspaceOrError" in query:
            loaded = {"name": "atelier", "loadStatus": "LOADED", "locationOrLoadError": {"__typename": "X"}}
            return {"workspaceOrError": {"locationEntries": [loaded]}}
        if "launchRun" in query:
            run: dict[str, Any] = {"runId": "r1", "jobName": "release", "status": "QUEUED", "tags": []}
            run |= {"creationTime": 1, "startTime": None, "endTime": None}
            return {"launchRun": {"__typename": "LaunchRunSuccess", "run": run}}
        if "runsOrError" in query:
            return {"runsOrError": {"__typename": "Runs", "results": []}}
        return {f"a{i}": self._events(asset) for i, asset in enumerate(("ticket", "plan", "pull_request"))}

    def _events(self, asset: str) -> dict[str, Any]:
        if asset not in self._made:
            return {}
        tag = {"key": "dagster/data_version", "value": self._made[asset].sha256}
        return {"assetMaterializations": [{"runId": "r", "timestamp": "1000", "tags": [tag], "metadataEntries": []}]}


def test_a_running_webserver_is_told_at_once(
    shop: Shop, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is told where the decision is, and nothing of what it says."""
    webserver = Webserver(shop.recorder.made, httpserver)
    monkeypatch.setenv("ATELIER_DAGSTER_URL", httpserver.url_for("").rstrip("/"))
    decided = asyncio.run(decide(load_settings(), KEY, Action.APPROVE, reason="fine"))
    assert decided.run_id == "r1"
    params = webserver.asked[-1]["variables"]["params"]
    assert params["runConfigData"] == {"ops": {"approval": {"config": {"source": "cli", "id": decided.id}}}}
    marks = {tag["key"]: tag["value"] for tag in params["executionMetadata"]["tags"]}
    assert marks["atelier/decision"] == f"cli:{decided.id}"
    assert marks["atelier/subject"] == shop.recorder.made["pull_request"].sha256
    assert marks["dagster/partition"] == KEY.partition
    assert "fine" not in str(params)
