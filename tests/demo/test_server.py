"""The protocol of the model servers, as the OpenAI client and raw HTTP see it."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import OpenAI

from atelier_dagster.demo import malformed, roles
from atelier_dagster.demo.conversation import read_conversation
from atelier_dagster.demo.model import LABEL, MalformedModel, ScriptedModel
from atelier_dagster.demo.server import ModelServer

ANALYST = [
    {"role": "system", "content": "You are the analyst of a software team. Answer in JSON."},
    {"role": "user", "content": "Title: Search\n\nSearch books by title."},
]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}},
}
DEVELOPER = [{"role": "user", "content": "You are the developer of a software team. Search books by title."}]


@pytest.fixture(scope="module", params=[ScriptedModel, MalformedModel])
def model(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with request.param() as server:
        yield server


@pytest.fixture
def client(model: ModelServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=model.url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


def post(server: ModelServer, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/chat/completions", json=body, timeout=20, trust_env=False)


def create(client: OpenAI, **asked: Any) -> Any:
    """A completion, whichever of the client's many overloads it takes."""
    untyped: Any = client
    return untyped.chat.completions.create(model="any", **asked)


def test_answers_are_the_same_streamed_or_not(client: OpenAI) -> None:
    whole = create(client, messages=ANALYST)
    chunks: list[Any] = list(create(client, messages=ANALYST, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == (whole.choices[0].message.content or "")
    assert chunks[-1].usage == whole.usage
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason == "stop"


def test_tool_calls_are_the_same_streamed_or_not(client: OpenAI) -> None:
    whole = create(client, messages=DEVELOPER, tools=[TOOL])
    (call,) = whole.choices[0].message.tool_calls
    chunks: list[Any] = list(create(client, messages=DEVELOPER, tools=[TOOL], stream=True))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    deltas = [delta.function for choice in choices for delta in choice.delta.tool_calls or ()]
    assert deltas[0].name == call.function.name
    assert "".join(delta.arguments or "" for delta in deltas) == call.function.arguments
    assert whole.choices[0].finish_reason == "tool_calls"


def test_everything_says_that_it_is_a_script(model: ModelServer) -> None:
    answer = post(model, model="gpt", messages=ANALYST)
    assert answer.headers["x-atelier-script"] == LABEL
    assert answer.headers["server"].startswith(LABEL)
    assert (answer.json()["model"], answer.json()["system_fingerprint"]) == (LABEL, LABEL)
    models = httpx.get(f"{model.url}/models", trust_env=False).json()
    assert [entry["id"] for entry in models["data"]] == [LABEL]
    streamed = post(model, model="gpt", messages=ANALYST, stream=True)
    assert streamed.headers["x-atelier-script"] == LABEL


def test_embeddings_are_near_for_texts_that_share_words(client: OpenAI) -> None:
    answer = client.embeddings.create(
        model="any", input=["short links page", "page of short links", "zebra"], encoding_format="float"
    )
    one, two, three = (item.embedding for item in answer.data)

    def dot(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert dot(one, two) > dot(one, three)
    assert abs(dot(one, one) - 1) < 1e-6


def test_bad_requests_are_refused(model: ModelServer) -> None:
    url = f"{model.url}/chat/completions"
    assert httpx.post(url, content=b"{", trust_env=False).status_code == 400
    assert httpx.post(url, json=[], trust_env=False).status_code == 400
    assert post(model, messages=[]).status_code == 400
    assert httpx.post(f"{model.url}/other", json={}, trust_env=False).status_code == 404
    assert httpx.get(f"{model.url}/other", trust_env=False).status_code == 404
    connection = http.client.HTTPConnection("127.0.0.1", model.port, timeout=20)
    connection.request("POST", "/v1/chat/completions", headers={"Content-Length": str(10**12)})
    assert connection.getresponse().status == 413
    connection.close()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
role = st.sampled_from(sorted(roles.NAMES)).map(
    lambda name: f"You are the {name} of a software team. Search books by title."
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]) | values, "content": role | values},
        optional={"tool_calls": values, "tool_call_id": values},
    )
    | values,
    max_size=5,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(messages, values)
def test_any_messages_have_an_answer_and_always_the_same(given: list[Any], tools: Any) -> None:
    request = {"messages": given, "tools": tools}
    first = read_conversation(json.loads(json.dumps(request)))
    for answer in (roles.answer, malformed.answer):
        assert answer(read_conversation(request)) == answer(first)


@pytest.mark.service
def test_it_runs_as_a_command() -> None:
    argv = [sys.executable, "-m", "atelier_dagster.demo.model", "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert httpx.get(f"{url}/models", trust_env=False).status_code == 200
        finally:
            process.terminate()
            process.wait(10)
