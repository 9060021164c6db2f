"""Chat over a scripted wire: what is assembled, what is retried, and what each failure becomes."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from email.utils import formatdate

import pytest
from pydantic import SecretStr

from atelier_dagster.factory.errors import (
    AtelierError,
    InvalidInput,
    ModelAuthFailed,
    ModelBudgetExceeded,
    ModelRefused,
    ModelSilent,
    ModelUnavailable,
)
from atelier_dagster.gateway import OpenAIGateway
from atelier_dagster.ports import ChatMessage
from tests.support.openai_wire import KEY, Wire

ASK = [ChatMessage("system", "You are terse."), ChatMessage("user", "Say hello 👋")]


async def test_an_answer_is_put_together_with_what_it_cost(wire: Wire) -> None:
    headers = "x-litellm-response-cost: 0.0025\r\nx-litellm-call-id: call-9\r\n"
    wire.answers = [wire.text("Hel", "lo", " 👋", headers=headers)]
    answer = await wire.gateway().chat("analyst", ASK)
    assert answer.text == "Hello 👋"
    assert (answer.tokens_in, answer.tokens_out, answer.cost_usd) == (7, 3, 0.0025)
    assert (answer.model, answer.request_id, answer.finish_reason) == ("model-a-1", "call-9", "stop")
    assert answer.duration > 0
    (request,) = wire.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["model"] == "model-a"
    assert request.body["stream"] is True
    assert request.body["messages"][1] == {"role": "user", "content": "Say hello 👋"}


async def test_cost_is_unknown_unless_told_and_may_come_with_the_tokens(wire: Wire) -> None:
    wire.answers = [
        wire.text("x"),
        wire.text("x", usage={"cost": 0.5}),
        wire.text("x", headers="x-litellm-response-cost: nan\r\n"),
    ]
    costs = [(await wire.gateway().chat("code", ASK)).cost_usd for _ in range(3)]
    assert costs == [None, 0.5, None]


async def test_each_role_may_have_its_own_model(wire: Wire) -> None:
    wire.answers = [wire.text("x")]
    gateway = wire.gateway(role_models={"security": "model-s"})
    for role in ("security", "code"):
        await gateway.chat(role, ASK)
    assert [request.body["model"] for request in wire.requests] == ["model-s", "model-a"]


async def test_other_accounts_of_the_environment_never_reach_the_endpoint(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "elsewhere")
    wire.answers = [wire.text("x")]
    await wire.gateway().chat("code", ASK)
    await OpenAIGateway(wire.url, None, "model-a").chat("code", ASK)
    assert not [name for request in wire.requests for name, value in request.headers.items() if "elsewhere" in value]
    assert "authorization" not in wire.requests[1].headers


# ------------------------------------------------------------------------------------------------- later is fine


@pytest.mark.parametrize(
    "status", ["408 T", "409 C", "425 E", "429 Too Many Requests", "500 I", "502 B", "503 S", "529 O"]
)
async def test_what_may_succeed_later_is_tried_again(wire: Wire, status: str) -> None:
    wire.answers = [wire.error(status), wire.error(status), wire.text("at last")]
    assert (await wire.gateway().chat("code", ASK)).text == "at last"
    assert len(wire.requests) == 3


async def test_half_an_answer_is_never_taken_for_a_whole_one(wire: Wire) -> None:
    halves = [
        wire.text("ha", done=False),
        wire.broken(),
        wire.hangup(),
        wire.events('data: {"id":'),
        wire.events('data: {"error": {"message": "overloaded", "code": "503"}}'),
        wire.events(),
        wire.events("data: [DONE]"),
    ]
    for half in halves:
        wire.answers = [half, wire.text("who", "le")]
        assert (await wire.gateway().chat("code", ASK)).text == "whole"
    wire.answers = [wire.text("approve", done=False)]
    with pytest.raises(ModelUnavailable) as caught:
        await wire.gateway().chat("code", ASK)
    assert "broke off" in caught.value.message


@pytest.mark.parametrize("text", ["", "  \n"])
async def test_an_empty_answer_is_none(wire: Wire, text: str) -> None:
    wire.answers = [wire.text(text), wire.text("something")]
    assert (await wire.gateway().chat("code", ASK)).text == "something"
    wire.answers, wire.requests = [wire.text(text)], []
    with pytest.raises(ModelSilent):
        await wire.gateway(max_attempts=3).chat("code", ASK)
    assert len(wire.requests) == 3


async def test_attempts_are_bounded(wire: Wire) -> None:
    wire.answers = [wire.error("500 I", "database on fire")]
    with pytest.raises(ModelUnavailable) as caught:
        await wire.gateway(max_attempts=3).chat("code", ASK)
    assert len(wire.requests) == 3
    assert "database on fire" in caught.value.message
    assert caught.value.transient
    assert caught.value.code == "MODEL_UNAVAILABLE"


async def test_retry_after_is_honoured(wire: Wire) -> None:
    wire.answers = [wire.error("429 T", headers="Retry-After: 1\r\n"), wire.text("ok")]
    started = time.monotonic()
    await wire.gateway().chat("code", ASK)
    assert 1.0 <= time.monotonic() - started < 5


@pytest.mark.parametrize("wait", ["3600", formatdate(time.time() + 3600, usegmt=True)], ids=["seconds", "date"])
async def test_a_wait_beyond_the_limit_ends_at_once_and_says_why(wire: Wire, wait: str) -> None:
    wire.answers = [wire.error("429 T", "slow down", headers=f"Retry-After: {wait}\r\n")]
    started = time.monotonic()
    with pytest.raises(ModelUnavailable) as caught:
        await wire.gateway().chat("code", ASK)
    assert time.monotonic() - started < 5
    assert "slow down" in caught.value.message
    assert len(wire.requests) == 1


@pytest.mark.parametrize("wait", ["soon", "", "-1", "Mon, 99 Foo"])
async def test_a_senseless_retry_after_is_ignored(wire: Wire, wait: str) -> None:
    wire.answers = [wire.error("429 T", headers=f"Retry-After: {wait}\r\n"), wire.text("ok")]
    assert (await wire.gateway().chat("code", ASK)).text == "ok"


@pytest.mark.parametrize("parts", [(), ("half",)], ids=["from the start", "half-way"])
async def test_a_silent_server_is_given_up_and_asked_again(wire: Wire, parts: tuple[str, ...]) -> None:
    wire.answers = [wire.silent(*parts), wire.text("awake")]
    assert (await wire.gateway(idle_timeout=0.2).chat("code", ASK)).text == "awake"


async def test_the_whole_call_has_a_limit(wire: Wire) -> None:
    wire.answers = [wire.error("500 I", "still booting"), wire.silent("half")]
    started = time.monotonic()
    with pytest.raises(ModelUnavailable) as caught:
        await wire.gateway(timeout=1.0, idle_timeout=60.0).chat("code", ASK)
    assert time.monotonic() - started < 6
    assert "within 1 s" in caught.value.message
    assert "still booting" in caught.value.message


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(ModelUnavailable):
        await OpenAIGateway("http://127.0.0.1:9/v1", None, "m", backoff=0.01).chat("code", ASK)


async def test_a_cancelled_call_ends(wire: Wire) -> None:
    wire.answers = [wire.silent("half")]
    task = asyncio.create_task(wire.gateway().chat("code", ASK))
    async with asyncio.timeout(10):
        await wire.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# ---------------------------------------------------------------------------------------------------- final ones


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        ("401 Unauthorized", "auth_error", ModelAuthFailed),
        ("400 Bad Request", "no_db_connection", ModelAuthFailed),
        ("403 Forbidden", "key_model_access_denied", ModelAuthFailed),
        ("400 Bad Request", "budget_exceeded", ModelBudgetExceeded),
        ("422 Unprocessable", "budget_exceeded", ModelBudgetExceeded),
        ("429 Too Many Requests", "budget_exceeded", ModelBudgetExceeded),
        ("429 Too Many Requests", "insufficient_quota", ModelBudgetExceeded),
        ("400 Bad Request", "invalid_request_error", ModelRefused),
        ("404 Not Found", "", ModelRefused),
        ("413 Too Large", "", ModelRefused),
        ("422 Unprocessable", "", ModelRefused),
        ("308 Permanent Redirect", "", ModelRefused),
    ],
)
async def test_what_no_retry_mends_is_asked_once(
    wire: Wire, status: str, kind: str, expected: type[AtelierError]
) -> None:
    wire.answers = [wire.error(status, "because", kind, headers="Location: http://127.0.0.1:9/\r\n")]
    with pytest.raises(expected) as caught:
        await wire.gateway().chat("code", ASK)
    assert type(caught.value) is expected
    assert len(wire.requests) == 1
    assert "because" in caught.value.message
    assert caught.value.fix
    assert not caught.value.transient


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ('{"message": "spent", "type": "budget_exceeded", "code": "400"}', ModelBudgetExceeded),
        ('{"message": "bad key", "code": "401"}', ModelAuthFailed),
        ('{"message": "too long", "code": 400}', ModelRefused),
    ],
)
async def test_errors_inside_a_stream_mean_the_same(wire: Wire, event: str, expected: type[AtelierError]) -> None:
    wire.answers = [wire.events(f'data: {{"error": {event}}}')]
    with pytest.raises(expected):
        await wire.gateway().chat("code", ASK)
    assert len(wire.requests) == 1


@pytest.mark.parametrize(("finish", "hint"), [("length", "longer"), ("content_filter", "reword")])
async def test_an_answer_that_cannot_come_is_refused(wire: Wire, finish: str, hint: str) -> None:
    wire.answers = [wire.text("", finish=finish)]
    with pytest.raises(ModelRefused) as caught:
        await wire.gateway().chat("code", ASK)
    assert hint in caught.value.fix
    assert len(wire.requests) == 1


async def test_a_web_page_says_that_the_address_is_wrong(wire: Wire) -> None:
    wire.answers = [wire.plain("200 OK", b"<html>", kind="text/html")]
    with pytest.raises(ModelRefused) as caught:
        await wire.gateway().chat("code", ASK)
    assert "ATELIER_LLM_BASE_URL" in caught.value.fix


async def test_an_answer_without_end_is_stopped(wire: Wire) -> None:
    wire.answers = [wire.text("x" * 1_500_000, "y" * 1_500_000)]
    with pytest.raises(ModelRefused):
        await wire.gateway().chat("code", ASK)


# --------------------------------------------------------------------------------------------- simpler servers


async def test_a_server_that_does_not_stream_is_fine(wire: Wire) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    body = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    wire.answers = [wire.plain("200 OK", body)]
    answer = await wire.gateway().chat("code", ASK)
    assert (answer.text, answer.tokens_in, answer.request_id) == ("whole", 2, "c1")


async def test_senseless_fields_of_a_chunk_do_no_harm(wire: Wire) -> None:
    odd = [
        "null",
        "[]",
        "1",
        '{"choices": {}, "usage": []}',
        '{"choices": [null], "model": 3, "id": {}}',
        '{"choices": [{"delta": "x", "finish_reason": 1}], "usage": {"prompt_tokens": "7", "cost": "much"}}',
        '{"choices": [{"delta": {"content": ["x"]}}], "usage": {"prompt_tokens": -1, "completion_tokens": true}}',
    ]
    good = '{"choices": [{"delta": {"content": "fine"}, "finish_reason": "stop"}]}'
    wire.answers = [wire.events(*[f"data: {line}" for line in [*odd, good]])]
    answer = await wire.gateway().chat("code", ASK)
    assert (answer.text, answer.tokens_in, answer.tokens_out, answer.cost_usd) == ("fine", 0, 0, None)


@pytest.mark.parametrize("status", ["400 Bad Request", "422 Unprocessable"])
async def test_a_server_without_stream_options_is_asked_without_them_from_then_on(wire: Wire, status: str) -> None:
    wire.answers = [wire.error(status, "unknown field stream_options"), wire.text("ok")]
    gateway = wire.gateway()
    for _ in range(2):
        assert (await gateway.chat("code", ASK)).text == "ok"
    assert ["stream_options" in request.body for request in wire.requests] == [True, False, False]


# ------------------------------------------------------------------------------------------------------ secrets


@pytest.mark.parametrize("status", ["401 Unauthorized", "400 Bad Request", "500 Internal"])
async def test_the_key_never_shows(wire: Wire, status: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wire.answers = [wire.error(status, f"Incorrect API key provided: {KEY}")]
    gateway = wire.gateway()
    with pytest.raises(AtelierError) as caught:
        await gateway.chat("code", ASK)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + str(caught.value.args)
    assert "***" in shown
    assert KEY not in shown + repr(gateway) + caplog.text + repr(gateway.workshop_upstream)


@pytest.mark.parametrize(
    "url", ["ftp://x/v1", "x/v1", "http://user:secret@x/v1", "http:///v1", "http://x/v1?key=1", "http://[x"]
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        OpenAIGateway(url, None, "m")
    assert "secret" not in str(caught.value)
    assert "ATELIER_LLM_BASE_URL" in caught.value.fix


@pytest.mark.parametrize(
    ("url", "model", "name"), [("", "m", "ATELIER_LLM_BASE_URL"), ("http://x", "", "ATELIER_LLM_MODEL")]
)
async def test_what_is_not_configured_is_named(url: str, model: str, name: str) -> None:
    with pytest.raises(ModelRefused) as caught:
        await OpenAIGateway(url, None, model).chat("code", ASK)
    assert caught.value.code == "MODEL_NOT_CONFIGURED"
    assert name in caught.value.fix


def test_workshops_get_the_same_endpoint() -> None:
    upstream = OpenAIGateway("http://x/v1/", SecretStr("k"), "m").workshop_upstream
    assert (upstream.base_url, upstream.model) == ("http://x/v1", "m")
    assert upstream.api_key == SecretStr("k")


def test_the_client_library_is_imported_only_when_called() -> None:
    import subprocess
    import sys

    code = (
        "import sys, atelier_dagster.gateway as g; g.OpenAIGateway('http://x', None, 'm');"
        "print([m for m in ('openai', 'httpx', 'httpx2', 'stamina') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
