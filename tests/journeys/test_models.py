"""The demo's tickets on other models, in whole journeys: a real proxy in front, other words, badly formed answers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from atelier_dagster.demo import DemoTicket, get_ticket, repositories
from atelier_dagster.demo.model import LABEL, MalformedModel, ScriptedModel
from atelier_dagster.factory.change import Changes, Ending, QaReport, TestReport, TestStatus
from atelier_dagster.factory.messages import plain
from atelier_dagster.factory.plan import ApprovedPlan
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.factory.verdict import QaDecision, Review
from tests.support.demo import REWORDED
from tests.support.installation import Installation, installation
from tests.support.litellm import LiteLLMProxy, litellm_proxy
from tests.support.opencode import opencode_binary

pytestmark = [pytest.mark.journey, pytest.mark.timeout(1200), pytest.mark.long]

_LIMIT = 600.0


def settings(url: str, key: str, model: str) -> Mapping[str, str]:
    """What a user sets."""
    return {
        "ATELIER_LLM_BASE_URL": url,
        "ATELIER_LLM_API_KEY": key,
        "ATELIER_LLM_MODEL": model,
        "ATELIER_LLM_TIMEOUT": "120",
        "ATELIER_AGENT": "opencode",
        "ATELIER_AGENT_BINARY": str(opencode_binary()),
    }


def hand_in(house: Installation, ticket: DemoTicket, title: str = "", body: str = "") -> TicketKey:
    """Take the ticket's repository in and write the ticket, at will in other words."""
    if ticket.repository is None:
        repo = house.repository(ticket.name)
    else:
        bare = house.home / "samples" / f"{ticket.name}.git"
        repositories.build(ticket.repository, bare)
        repo = house.take_in(ticket.name, bare)
    return house.ticket(repo, title or ticket.title, body or ticket.body)


# ------------------------------------------------------------------------- a real proxy, tickets in other words

NAMES = ("url-shortener", "bad-split", "auth-module", "failing-tests")


class Agents:
    """Looks, whenever a model is asked with tools, at what the agents that ask can see of a secret."""

    def __init__(self) -> None:
        self.secret = b""
        self.looked = 0
        self.leaks: list[str] = []

    def __call__(self, _path: str, request: Mapping[str, Any]) -> None:
        if not request.get("tools"):
            return
        for proc in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                command = (proc / "cmdline").read_bytes()
                inside = b"opencode" in command and (proc / "ns/net").readlink() != Path("/proc/self/ns/net").readlink()
                self.looked += inside
                if self.secret in command or (inside and self.secret in (proc / "environ").read_bytes()):
                    self.leaks.append(command.decode(errors="replace"))


@pytest.fixture(scope="module")
def agents() -> Agents:
    return Agents()


@pytest.fixture(scope="module")
def proxy(agents: Agents) -> Iterator[LiteLLMProxy]:
    """LiteLLM in front of the script."""
    with (
        ScriptedModel(observe=agents) as script,
        litellm_proxy(
            script.url, models=("team-model",), upstream_model=LABEL, input_price=1e-6, output_price=1e-6
        ) as started,
    ):
        agents.secret = started.api_key.encode()
        yield started


@pytest.fixture(scope="module")
def proxied(proxy: LiteLLMProxy) -> Iterator[Installation]:
    """An installation that knows nothing but the proxy."""
    with installation(proxy.base_url, settings(proxy.base_url, proxy.api_key, "team-model")) as house:
        yield house


@pytest.mark.service
def test_tickets_in_other_words_through_a_real_proxy_that_keeps_its_key(
    proxied: Installation, proxy: LiteLLMProxy, agents: Agents
) -> None:
    keys = {name: hand_in(proxied, get_ticket(name), *REWORDED[name]) for name in NAMES}
    for key in keys.values():
        assert proxied.deliver(key, _LIMIT).concerns == ()
    assert_nowhere(proxy.api_key, proxied.home)  # while the workshops of all are there
    for key in keys.values():
        proxied.decide(key)
    for key in keys.values():
        assert proxied.wait_current(key, "outcome", _LIMIT).ending is Ending.MERGED
        report = proxied.history(key).value("qa_report", QaReport)
        assert report is not None and report.verdict.verdict is QaDecision.PASS, report
        proxied.wait_idle(key)
    assert_nowhere(proxy.api_key, proxied.home)
    assert agents.looked > 0 and agents.leaks == []

    security = proxied.history(keys["auth-module"]).value("security_review", Review)
    assert security is not None and security.triggered
    reports = [entry.artifact.value.status for entry in proxied.history(keys["failing-tests"]).all("test_report")]
    assert reports == [TestStatus.FAILED, TestStatus.PASSED]
    changes = proxied.history(keys["bad-split"]).value("changes", Changes)
    assert changes is not None and len(changes.tasks) == 2


def assert_nowhere(secret: str, home: Path) -> None:
    """No file below a home holds the secret: artifact, log, database, workshop."""
    looked = 0
    for folder, _, names in os.walk(home):
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                looked += 1
                assert secret.encode() not in path.read_bytes(), path
    assert looked > 100


# ----------------------------------------------------------------------------------------- badly formed answers


@pytest.fixture(scope="module")
def malformed() -> Iterator[Installation]:
    """An installation whose model has a bad day."""
    with MalformedModel() as script, installation(script.url, settings(script.url, "", LABEL)) as house:
        yield house


def test_badly_formed_answers_end_in_the_documented_fallbacks(malformed: Installation) -> None:
    keys = {name: hand_in(malformed, get_ticket(name)) for name in ("rest-api", "two-halves", "auth-module")}
    concerned = 0
    for key in keys.values():
        opened = malformed.deliver(key, _LIMIT)
        history = malformed.history(key)
        report, plan = history.value("test_report", TestReport), history.value("approved_plan", ApprovedPlan)
        assert report is not None and report.status is TestStatus.PASSED, "the agents' work is none the worse"
        assert plan is not None
        for concern in unread(history.value("code_review", Review), history.value("security_review", Review)):
            assert any(concern in shown for shown in opened.concerns)
        assert all(concern in opened.concerns for concern in plan.concerns)
        assert all(plain(concern) in opened.body for concern in opened.concerns)
        concerned += bool(opened.concerns)
    assert concerned, "a bad day is never quite invisible"
    for key in keys.values():
        malformed.decide(key)
    for key in keys.values():
        assert malformed.wait_current(key, "outcome", _LIMIT).ending is Ending.MERGED
        assert {run.status for run in malformed.history(key).runs} == {"success"}


def unread(*reviews: Review | None) -> list[str]:
    """What reviewers said that nobody could read."""
    return [review.verdict.concern for review in reviews if review and review.verdict.concern]
