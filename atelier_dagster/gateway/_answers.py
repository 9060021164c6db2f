"""A model's answer put together from what came. Belongs here: chunks and whole bodies. Not here: connections."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from atelier_dagster.factory.errors import ModelRefused, ModelSilent
from atelier_dagster.gateway._failures import FIX_URL, Failure, unavailable
from atelier_dagster.ports import ChatAnswer

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

    def take(self, data: object, part: str) -> None:
        """Take a chunk (`part` "delta") or a whole completion ("message")."""
        fields = _mapping(data)
        self.model = _text(fields.get("model")) or self.model
        self.request_id = self.request_id or _text(fields.get("id"))
        self._count(_mapping(fields.get("usage")))
        choices = fields.get("choices")
        if isinstance(choices, list) and choices:
            choice = _mapping(cast("list[object]", choices)[0])
            self._add(_text(_mapping(choice.get(part)).get("content")), _text(choice.get("finish_reason")))

    def _add(self, text: str, finish_reason: str) -> None:
        self.parts.append(text)
        self.size += len(text)
        if self.size > LONGEST_ANSWER:
            raise Failure(ModelRefused(f"the answer is longer than {LONGEST_ANSWER} characters", fix="ask for less"))
        self.finish_reason = finish_reason or self.finish_reason

    def _count(self, usage: Mapping[str, Any]) -> None:
        """Token counts, and the cost where the server tells it with them."""
        self.tokens_in = _number(usage.get("prompt_tokens")) or self.tokens_in
        self.tokens_out = _number(usage.get("completion_tokens")) or self.tokens_out
        told = _price(usage.get("cost"))
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
        return Failure(ModelSilent("the model answered nothing", fix="ask again, or use another model"))


async def read_chunks(draft: Draft, chunks: AsyncIterator[object]) -> None:
    """Put a streamed answer together."""
    async for chunk in chunks:
        draft.take(chunk, "delta")


def read_body(draft: Draft, body: bytes) -> None:
    """Read the answer of a server that does not stream. Raises `Failure` when it is none (a web page, say)."""
    try:
        data: object = json.loads(body)
    except ValueError:
        data = None
    if "choices" not in _mapping(data):
        raise Failure(ModelRefused("the answer is none of an OpenAI-compatible endpoint", fix=FIX_URL))
    draft.take(data, "message")


def _price(value: Any) -> float | None:
    try:
        price = float(value)
    except (TypeError, ValueError):
        return None
    return price if math.isfinite(price) and price >= 0 else None


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
