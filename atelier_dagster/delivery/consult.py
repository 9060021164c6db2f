"""Asking a model for one of the journey's roles, and never paying twice for one answer. Not here: what it is asked."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from atelier_dagster.factory.errors import ModelSilent, NotFound
from atelier_dagster.factory.lineage import canonical_json, sha256_hex
from atelier_dagster.factory.prompts import Prompt
from atelier_dagster.ports import ChatAnswer, ChatMessage, Gateway, ObjectStore


class CallRecord(BaseModel):
    """A model call as kept for auditors: what was asked, and what was answered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: str
    system: str
    user: str
    answer: str
    model: str
    request_id: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    duration: float = 0.0
    """Seconds."""


@dataclass(frozen=True)
class Usage:
    """What the calls of one step took."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    model: str = ""
    records: tuple[str, ...] = ()
    """Keys of the call records."""

    def plus(self, record: CallRecord, key: str) -> Usage:
        """With one more call."""
        known = [c for c in (self.cost_usd, record.cost_usd) if c is not None]
        return Usage(
            calls=self.calls + 1,
            tokens_in=self.tokens_in + record.tokens_in,
            tokens_out=self.tokens_out + record.tokens_out,
            cost_usd=sum(known) if known else None,
            model=record.model,
            records=(*self.records, key),
        )


class Consultant:
    """Asks the model on behalf of one step of one ticket.

    An answer is kept under the hash of the question and `generation` (how often the step has been materialized from
    the same inputs): a step that died after its answer came finds it again, while one repeated on purpose asks anew.
    """

    def __init__(self, gateway: Gateway, objects: ObjectStore, ticket: str, generation: int) -> None:
        self._gateway = gateway
        self._objects = objects
        self._ticket = ticket
        self._generation = generation
        self.usage = Usage()

    async def ask(self, role: str, prompt: Prompt) -> str:
        """The answer's text; "" from a model that says nothing however often it is asked, which readers of answers
        take for one that cannot be read. Raises the gateway's other typed errors.
        """
        question = [role, prompt.system, prompt.user, self._generation]
        key = f"calls/{self._ticket}/{sha256_hex(canonical_json(question))}.json"
        record = await self._earlier(key) or await self._call(key, role, prompt)
        self.usage = self.usage.plus(record, key)
        return record.answer

    async def _earlier(self, key: str) -> CallRecord | None:
        try:
            return CallRecord.model_validate_json(await self._objects.get(key))
        except NotFound:
            return None

    async def _call(self, key: str, role: str, prompt: Prompt) -> CallRecord:
        messages = (ChatMessage("system", prompt.system), ChatMessage("user", prompt.user))
        try:
            answer = await self._gateway.chat(role, messages)
        except ModelSilent:
            answer = ChatAnswer(text="", model="")
        record = CallRecord(
            role=role,
            system=prompt.system,
            user=prompt.user,
            answer=answer.text,
            model=answer.model,
            request_id=answer.request_id,
            tokens_in=answer.tokens_in,
            tokens_out=answer.tokens_out,
            cost_usd=answer.cost_usd,
            duration=answer.duration,
        )
        await self._objects.put_if_absent(key, canonical_json(record.model_dump(mode="json")), "application/json")
        return record
