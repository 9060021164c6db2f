"""Embeddings over a scripted wire."""

from __future__ import annotations

from typing import Any

import pytest

from atelier_dagster.factory.errors import ModelAuthFailed, ModelUnavailable, NotFound
from tests.support.openai_wire import Wire


def vectors(*values: list[float], backwards: bool = False) -> dict[str, Any]:
    data = [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(values)]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return {"object": "list", "model": "e", "data": data[::-1] if backwards else data, "usage": usage}


async def test_one_vector_a_text_in_their_order(wire: Wire) -> None:
    wire.answers = [wire.error("500 I"), wire.plain("200 OK", vectors([1.0, 0.0], [0.0, 1.0], backwards=True))]
    assert await wire.gateway(embedding_model="e").embed(["a", "b"]) == [[1.0, 0.0], [0.0, 1.0]]
    assert wire.requests[1].body == {"model": "e", "input": ["a", "b"], "encoding_format": "float"}


async def test_many_texts_go_in_batches(wire: Wire) -> None:
    wire.answers = [wire.plain("200 OK", vectors(*[[1.0]] * size)) for size in (128, 128, 44)]
    assert len(await wire.gateway(embedding_model="e").embed(["x"] * 300)) == 300
    assert await wire.gateway(embedding_model="e").embed([]) == []
    assert len(wire.requests) == 3


async def test_missing_vectors_are_no_answer(wire: Wire) -> None:
    wire.answers = [wire.plain("200 OK", vectors([1.0]))]
    with pytest.raises(ModelUnavailable):
        await wire.gateway(embedding_model="e", max_attempts=2).embed(["a", "b"])


async def test_errors_are_those_of_a_chat(wire: Wire) -> None:
    wire.answers = [wire.error("401 U")]
    with pytest.raises(ModelAuthFailed):
        await wire.gateway(embedding_model="e").embed(["a"])


async def test_without_an_embedding_model_there_is_none(wire: Wire) -> None:
    with pytest.raises(NotFound) as caught:
        await wire.gateway().embed(["a"])
    assert "ATELIER_LLM_EMBEDDING_MODEL" in caught.value.fix
