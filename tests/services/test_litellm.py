"""The gateway through a real LiteLLM proxy: answers, tokens, cost, and its ways of saying no."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack

import pytest
import pytest_asyncio
from pydantic import SecretStr

from atelier_dagster.factory.errors import ModelAuthFailed, ModelRefused, ModelUnavailable
from atelier_dagster.gateway import OpenAIGateway
from atelier_dagster.ports import ChatMessage
from tests.support.litellm import LiteLLMProxy, litellm_proxy
from tests.support.openai_wire import Wire, openai_wire

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

ASK = [ChatMessage("user", "hello")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wire() -> AsyncGenerator[Wire]:
    async with openai_wire() as scripted:
        yield scripted


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(wire: Wire) -> AsyncGenerator[LiteLLMProxy]:
    with ExitStack() as running:
        started = litellm_proxy(wire.url, models=("model-a", "embed-a"), input_price=1e-3, output_price=1e-2)
        yield await asyncio.to_thread(running.enter_context, started)


def gateway(proxy: LiteLLMProxy, key: str = "", model: str = "model-a") -> OpenAIGateway:
    return OpenAIGateway(
        proxy.base_url, SecretStr(key or proxy.api_key), model, embedding_model="embed-a", max_attempts=2, backoff=0.05
    )


async def test_an_answer_comes_with_tokens_cost_and_id(proxy: LiteLLMProxy, wire: Wire) -> None:
    wire.answers, wire.requests = [wire.text("Hel", "lo")], []
    answer = await gateway(proxy).chat("code", ASK)
    assert answer.text == "Hello"
    assert (answer.tokens_in, answer.tokens_out) == (7, 3)
    assert answer.cost_usd == pytest.approx(7 * 1e-3 + 3 * 1e-2)
    assert answer.request_id
    assert answer.finish_reason == "stop"
    assert proxy.api_key not in str(wire.requests)


async def test_failures_behind_the_proxy_are_retried_or_told(proxy: LiteLLMProxy, wire: Wire) -> None:
    wire.answers = [wire.error("500 Internal", "on fire"), wire.text("ok")]
    assert (await gateway(proxy).chat("code", ASK)).text == "ok"
    wire.answers = [wire.error("500 Internal", "on fire")]
    with pytest.raises(ModelUnavailable):
        await gateway(proxy).chat("code", ASK)
    wire.answers = [wire.broken()]
    with pytest.raises(ModelUnavailable):
        await gateway(proxy).chat("code", ASK)
    wire.answers = [wire.error("400 Bad", "prompt too long")]
    with pytest.raises(ModelRefused):
        await gateway(proxy).chat("code", ASK)


async def test_a_wrong_key_and_an_unknown_model_are_told_apart(proxy: LiteLLMProxy) -> None:
    with pytest.raises(ModelAuthFailed):
        await gateway(proxy, key="sk-wrong").chat("code", ASK)
    with pytest.raises(ModelRefused):
        await gateway(proxy, model="nope").chat("code", ASK)


async def test_embeddings_pass_through(proxy: LiteLLMProxy, wire: Wire) -> None:
    data = [{"object": "embedding", "index": n, "embedding": [float(n), 1.0]} for n in range(2)]
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    wire.answers = [wire.plain("200 OK", {"object": "list", "model": "embed-a", "data": data, "usage": usage})]
    assert await gateway(proxy).embed(["a", "b"]) == [[0.0, 1.0], [1.0, 1.0]]


async def test_preflight_knows_the_models_and_the_key(proxy: LiteLLMProxy) -> None:
    assert [check.ok for check in await gateway(proxy).preflight()] == [True, True]
    assert [check.ok for check in await gateway(proxy, model="nope").preflight()] == [True, False]
    address, _ = await gateway(proxy, key="sk-wrong").preflight()
    assert not address.ok
    assert "ATELIER_LLM_API_KEY" in address.fix
