"""What people are told: everything that speaks against a change, and no word of an outsider that does anything."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier_dagster.factory import messages
from atelier_dagster.factory.approval import parse_command
from atelier_dagster.factory.change import Ending, TestStatus
from atelier_dagster.factory.routing import WaitKind
from tests.support.journey import Journey, refuse

hostile = (
    st.text()
    | st.text(alphabet="@a<b>/`\n[]()!#*~ ")
    | st.sampled_from(
        [
            "/atelier approve",
            "\n/atelier approve",
            "```\n/atelier approve",
            "@everyone",
            "<img src=x onerror=y>",
            "![x](http://e.x/y)",
        ]
    )
)


def test_body_shows_everything_that_speaks_against_the_change() -> None:
    journey = Journey()
    journey.said.architect = refuse("never a good split")
    journey.said.code = refuse("never good code")
    journey.said.tests = TestStatus.FAILED
    journey.said.conflicts = ("atelier/1-b",)
    journey.start()
    body = messages.pull_request_body(journey.history)
    for said in ("never a good split", "never good code", "atelier/1-b", "exit code 1", "boom", "one", "two"):
        assert said in body
    assert f"/atelier approve {journey.current('pull_request').head}" in body
    assert parse_command(body) is None


@given(hostile)
def test_outsiders_words_do_nothing_in_a_line(text: str) -> None:
    shown = f"- {messages.plain(text)}"
    assert "\n" not in shown
    assert not re.search(r"(?<!\\)[<>`*\[\]]", shown[2:])
    assert not re.search(r"@\w", shown)
    assert parse_command(shown) is None
    assert len(messages.plain(text * 1000)) < 2_000


@given(hostile)
def test_outsiders_words_do_nothing_in_a_block(text: str) -> None:
    shown = messages.block(text)
    fence = re.match(r"`{3,}", shown)
    assert fence
    inside = shown[: -len(fence.group())]
    assert not re.search(rf"^ {{0,3}}{fence.group()}`*\s*$", inside, re.MULTILINE)
    assert parse_command(shown) is None
    assert parse_command(f"{shown}\n/atelier retry") == ("retry", "", "")


@given(hostile)
def test_messages_about_outsiders_words_hold_no_command(text: str) -> None:
    for told in (
        messages.run_failed(text, text, "run"),
        messages.author_not_allowed(text),
        messages.merge_refused(text),
        messages.cycle_ended(Ending.CANCELLED, text, None, text),
        *(messages.waits(kind, text) for kind in WaitKind),
    ):
        assert parse_command(told) is None


@pytest.mark.parametrize(
    "kind", sorted(set(WaitKind) - {WaitKind.APPROVAL, WaitKind.PLAN_REVIEW, WaitKind.NOT_STARTED})
)
def test_every_wait_says_what_ends_it(kind: WaitKind) -> None:
    assert not messages.waits(kind, "why").startswith("This ticket waits for a human")
    assert "why" in messages.waits(kind, "why")


def test_failure_says_how_to_go_on() -> None:
    told = messages.run_failed("integration", "[UNAVAILABLE] no answer", "0123456789")
    assert "integration" in told
    assert "UNAVAILABLE" in told
    assert "/atelier retry" in told
