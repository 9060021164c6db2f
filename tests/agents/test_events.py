"""Reading what OpenCode printed: every way of ending, and any garbage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier_dagster.agents import CommandAgent, OpenCode
from atelier_dagster.ports import AgentAnswer, ExecResult

CODES = {"", "MODEL_AUTH", "MODEL_BUDGET", "MODEL_ERROR", "AGENT_CRASHED", "AGENT_TIMEOUT", "AGENT_SILENT"}


def read(*events: Any, exit_code: int | None = 0, stderr: bytes = b"", **more: Any) -> AgentAnswer:
    lines = b"\n".join(e if isinstance(e, bytes) else json.dumps(e).encode() for e in events)
    return OpenCode(None).read(ExecResult("x", exit_code, lines, stderr, **more))


def text(words: str, message: str = "m1") -> dict[str, Any]:
    return {"type": "text", "part": {"messageID": message, "text": words}}


def step(tokens_in: Any = 10, tokens_out: Any = 3, **cache: Any) -> dict[str, Any]:
    return {"type": "step_finish", "part": {"tokens": {"input": tokens_in, "output": tokens_out, "cache": cache}}}


def failure(name: str = "APIError", **data: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"name": name, "data": data}}


def test_the_last_message_is_the_answer_and_tokens_are_summed() -> None:
    answer = read(text("thinking"), step(), text("done,", "m2"), text("all of it", "m2"), step(5, 2, read=100, write=1))
    assert answer.text == "done,\nall of it"
    assert (answer.tokens_in, answer.tokens_out, answer.steps, answer.error_code) == (116, 5, 2, "")


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (failure(message="Unauthorized", statusCode=401), "MODEL_AUTH"),
        (failure("ProviderAuthError", message="no key"), "MODEL_AUTH"),
        (failure(message="Budget", statusCode=422), "MODEL_BUDGET"),
        (failure(message="x", statusCode=400, responseBody='{"error":{"type":"budget_exceeded"}}'), "MODEL_BUDGET"),
        (failure(message="nope", statusCode=404), "MODEL_ERROR"),
        (failure("UnknownError", message=None), "MODEL_ERROR"),
        ({"type": "error", "error": "text"}, "MODEL_ERROR"),
        ({"type": "error"}, "MODEL_ERROR"),
    ],
)
def test_error_events_become_codes(event: dict[str, Any], code: str) -> None:
    answer = read(event, exit_code=1)
    assert answer.error_code == code
    assert answer.error


def test_an_error_that_the_agent_got_over_is_none() -> None:
    assert read(failure(message="overloaded", statusCode=529), text("done"), step()).error_code == ""


def test_ways_of_ending_without_an_answer() -> None:
    assert read(exit_code=0).error_code == "AGENT_SILENT"
    assert read(exit_code=None, timed_out=True, duration=12).error_code == "AGENT_TIMEOUT"
    killed = read(exit_code=None, reason="out of memory")
    assert (killed.error_code, "out of memory" in killed.error) == ("AGENT_CRASHED", True)
    crashed = read(exit_code=134, stderr=b"\x1b[31mpanic: core\x00 dumped\n")
    assert (crashed.error_code, "134" in crashed.error, "\x1b" in crashed.error) == ("AGENT_CRASHED", True, False)


def test_work_without_words_is_work() -> None:
    assert read(step()).error_code == ""


def test_messages_are_bounded_and_on_one_line() -> None:
    answer = read(failure(message="a\nb" * 100_000, statusCode=500), exit_code=1)
    assert len(answer.error) < 3_000
    assert "\n" not in answer.error
    assert len(read(text("x" * 1_000_000)).text) <= 200_000


def test_output_with_its_middle_cut_out_still_reads() -> None:
    first, last = json.dumps(step()).encode(), json.dumps(text("final")).encode()
    assert read(first, b'{"type":"text","part":{"te', b'[... dropped ...]ext":"half"}}', last).text == "final"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
events = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "step_finish", "error", "tool_use"]) | json_values},
    optional={
        "part": json_values
        | st.fixed_dictionaries({"text": json_values, "messageID": json_values, "tokens": json_values}),
        "error": json_values | st.fixed_dictionaries({"name": json_values, "data": json_values}),
    },
)
lines = st.lists(st.binary(max_size=80) | events.map(lambda e: json.dumps(e).encode()), max_size=8).map(b"\n".join)


@given(lines, st.binary(max_size=80), st.none() | st.integers(), st.booleans())
def test_garbage_never_raises(stdout: bytes, stderr: bytes, exit_code: int | None, timed_out: bool) -> None:
    result = ExecResult("x", exit_code, stdout, stderr, timed_out=timed_out)
    for answer in (OpenCode(None).read(result), CommandAgent(["agent"]).read(result)):
        assert answer.error_code in CODES
        assert bool(answer.error) == bool(answer.error_code)
        assert answer.tokens_in >= 0
        assert answer.tokens_out >= 0


def test_deeply_nested_lines_are_skipped() -> None:
    assert read(b'{"type":' + b"[" * 200_000, text("fine")).text == "fine"
