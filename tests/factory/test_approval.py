"""Who may decide, on which head, and how a command is spelled."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier_dagster.factory.approval import (
    Action,
    Approval,
    DecisionSource,
    HumanDecision,
    equivalent_heads,
    judge,
    parse_command,
)
from atelier_dagster.factory.change import PullRequest
from tests.support.journey import Journey, digest

HEAD, OLD, TWIN = digest("head"), digest("old"), digest("twin")
OPENED = PullRequest(
    number=1,
    url="u",
    title="t",
    body="b",
    head=HEAD,
    base="",
    branch="b",
    base_branch="trunk",
    changed_files=1,
    diff_sha256="d",
    concerns=("[Code] x",),
)


def judged(head_now: str = "", allow_ui: bool = False, **decision: Any) -> Approval:
    fields: dict[str, Any] = {
        "source": DecisionSource.COMMENT,
        "id": "1",
        "actor": "alice",
        "action": Action.APPROVE,
        "head": HEAD,
    }
    return judge(
        HumanDecision(**{**fields, **decision}),
        OPENED,
        approvers=frozenset({"alice"}),
        bot="Atelier-Bot",
        equivalent_heads=frozenset({HEAD, TWIN}),
        base="base",
        base_moved=False,
        allow_ui=allow_ui,
        head_now=head_now,
    )


@pytest.mark.parametrize(
    "decision",
    [
        {},
        {"head": TWIN},
        {"actor": "carol", "may_decide": True},
        {"action": Action.REJECT, "head": ""},
        {"action": Action.REQUEST_CHANGES, "head": ""},
        {"source": DecisionSource.UI, "actor": "", "allow_ui": True},
        {"action": Action.REJECT, "head_now": OLD},
        {"head_now": HEAD},
    ],
)
def test_counts(decision: dict[str, Any]) -> None:
    approval = judged(**decision)
    assert approval.counts
    assert approval.refusal == ""
    assert approval.concerns_shown == OPENED.concerns


@pytest.mark.parametrize(
    "decision",
    [
        {"actor": "mallory"},
        {"actor": ""},
        {"actor": "Alice"},
        {"actor": "atelier-bot", "may_decide": True},
        {"is_bot": True},
        {"head": ""},
        {"head": OLD},
        {"head": HEAD[:12]},
        {"action": Action.REJECT, "head": OLD},
        {"action": Action.REQUEST_CHANGES, "actor": "mallory"},
        {"source": DecisionSource.UI},
        {"source": DecisionSource.UI, "allow_ui": True, "head": ""},
        {"head_now": OLD},
        {"head": OLD, "head_now": OLD},
    ],
)
def test_does_not_count(decision: dict[str, Any]) -> None:
    approval = judged(**decision)
    assert not approval.counts
    assert approval.refusal


def test_only_those_allowed_report_a_moved_head() -> None:
    assert judged(head_now=OLD).head_moved
    assert not judged(head_now=OLD, actor="mallory").head_moved
    assert not judged().head_moved


def test_heads_with_the_same_diff_are_equivalent_in_their_cycle() -> None:
    journey = Journey()
    assert equivalent_heads(journey.history) == frozenset()
    journey.start()
    first = journey.current("pull_request").head
    journey.move_base()
    journey.run(("integration", "diff", "test_report", "tested_diff", "code_review", "security_review", "ops_review"))
    journey.run(("review_gate", "pull_request"))
    assert equivalent_heads(journey.history) == {first, journey.current("pull_request").head}
    journey.decide(Action.REQUEST_CHANGES)
    journey.release()
    journey.follow()
    assert equivalent_heads(journey.history) == {journey.current("pull_request").head}


@pytest.mark.parametrize(
    ("body", "command"),
    [
        (f"/atelier approve {HEAD}", (Action.APPROVE, HEAD, "")),
        (f"fine\r\n/atelier approve {HEAD} good work\r\n", (Action.APPROVE, HEAD, "good work")),
        ("/atelier reject defaced page", (Action.REJECT, "", "defaced page")),
        ("/atelier changes\nrename it\n\nand test it", (Action.REQUEST_CHANGES, "", "rename it\n\nand test it")),
        ("/Atelier Retry", ("retry", "", "")),
        ("/atelier reject no\n/atelier approve", (Action.REJECT, "", "no")),
        ("```\nx\n```\n/atelier retry", ("retry", "", "")),
        ("/atelier approve `x`", (Action.APPROVE, "", "`x`")),
    ],
)
def test_commands(body: str, command: tuple[object, str, str]) -> None:
    assert parse_command(body) == command


@pytest.mark.parametrize(
    "body",
    [
        "",
        "please /atelier approve",
        " /atelier approve",
        "> /atelier approve",
        "```\n/atelier approve\n```",
        "~~~~\n```\n/atelier approve\n~~~\n",
        "```\n/atelier approve",
        "    /atelier approve",
        "<!-- \n/atelier approve\n-->",
        "<!--\n/atelier approve",
        "/atelier approved",
        "/atelier",
        "/atelier\napprove",
        "/atelier-approve",
    ],
)
def test_no_commands(body: str) -> None:
    assert parse_command(body) is None


@given(st.text() | st.text(alphabet="/atelier approve`~>\n<!- 0af"))
def test_arbitrary_comments_are_read(body: str) -> None:
    found = parse_command(body)
    assert found is None or len(found.reason) <= 4_000
