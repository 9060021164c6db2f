"""A model's answer put together from what came. Belongs here: chunks and whole bodies. Not here: connections."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from atelier_dagster.factory.errors import ModelRefused
from atelier_dagster.gateway._failures import FIX_URL, Failure, unavailable
from atelier_dagster.ports import ChatAnswer

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk
    from openai.types.completion_usage import CompletionUsage

LONGEST_ANSWER = 2_000_000
"""Characters; a model that runs on for longer is stopped."""


@dataclass
class Draft:
    """An answer as far as it has come."""

    model: str
    parts: list[str] = field(default_factory=list[str])
    size: int = 0
    request_id: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    finish_reason: str = ""

    def read_headers(self, headers: Mapping[str, str]) -> None:
        """Keep the request's id, and LiteLLM's cost of the call."""
        self.request_id = headers.get("x-litellm-call-id") or headers.get("x-request-id") or self.request_id
        self.cost_usd = _price(headers.get("x-litellm-response-cost"))

    def add(self, text: str | None, finish_reason: str | None) -> None:
        """Take one more piece."""
        if text:
            self.parts.append(text)
            self.size += len(text)
        if self.size > LONGEST_ANSWER:
            raise Failure(ModelRefused(f"the answer is longer than {LONGEST_ANSWER} characters", fix="ask for less"))
        self.finish_reason = finish_reason or self.finish_reason

    def count(self, usage: CompletionUsage | None) -> None:
        """Take over token counts, and the cost where the server tells it with them."""
        if usage is None:
            return
        self.tokens_in, self.tokens_out = usage.prompt_tokens or 0, usage.completion_tokens or 0
        told = _price((usage.model_extra or {}).get("cost"))
        self.cost_usd = told if told is not None else self.cost_usd

    def finished(self, duration: float) -> ChatAnswer:
        """The whole answer. Raises `Failure` when it is cut off or empty: neither may pass for what the model said."""
        text = "".join(self.parts)
        if not self.finish_reason:
            raise unavailable("the answer of the model endpoint broke off")
        if not text.strip():
            raise self._empty()
        return ChatAnswer(
            text=text,
            model=self.model,
            request_id=self.request_id,
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
            cost_usd=self.cost_usd,
            duration=duration,
            finish_reason=self.finish_reason,
        )

    def _empty(self) -> Failure:
        if self.finish_reason == "length":
            return Failure(ModelRefused("the model spent its whole answer thinking", fix="allow it longer answers"))
        if self.finish_reason == "content_filter":
            return Failure(ModelRefused("the model endpoint's content filter holds the answer back", fix="reword it"))
        return unavailable("the model answered nothing")


async def read_chunks(draft: Draft, chunks: AsyncIterator[ChatCompletionChunk]) -> None:
    """Put a streamed answer together."""
    async for chunk in chunks:
        draft.model = chunk.model or draft.model
        draft.request_id = draft.request_id or chunk.id or ""
        draft.count(chunk.usage)
        for choice in (chunk.choices or ())[:1]:
            draft.add(choice.delta.content if choice.delta else None, choice.finish_reason)


def read_body(draft: Draft, body: bytes) -> None:
    """Read the answer of a server that does not stream. Raises `Failure` when it is none (a web page, say)."""
    from openai.types.chat import ChatCompletion

    try:
        completion = ChatCompletion.model_validate_json(body)
    except ValidationError:
        raise Failure(ModelRefused("the answer is none of an OpenAI-compatible endpoint", fix=FIX_URL)) from None
    draft.model = completion.model or draft.model
    draft.request_id = draft.request_id or completion.id
    draft.count(completion.usage)
    for choice in completion.choices[:1]:
        draft.add(choice.message.content, choice.finish_reason)


def _price(value: Any) -> float | None:
    try:
        price = float(value)
    except (TypeError, ValueError):
        return None
    return price if math.isfinite(price) and price >= 0 else None
