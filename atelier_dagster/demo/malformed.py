"""The script on a bad day: the same decisions in answers that are hard or impossible to read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from atelier_dagster.demo import roles
from atelier_dagster.demo.conversation import Conversation, Reply, ToolCall


def answer(talk: Conversation) -> Reply:
    """What the script would say, badly put."""
    reply = roles.answer(talk)
    if talk.role not in roles.NAMES:
        return reply
    if reply.calls:
        return _bad_call(talk, reply)
    if talk.role.startswith("developer"):
        return Reply(f"Well, well.\n```json\n{{}}\n```\n{reply.text}")
    mishap = MISHAPS[_dice(talk) % len(MISHAPS)]
    return Reply(mishap(reply.text))


def frames(talk: Conversation, chunks: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """An event stream that is legal and unusual: comments, CRLF, chunks cut anywhere; at times without its end mark."""
    yield b": a comment that means nothing\r\n\r\n"
    for chunk in chunks:
        event = b"event: message\r\nid: 7\r\ndata: " + json.dumps(chunk).encode() + b"\r\n\r\n"
        middle = len(event) // 2
        yield event[:middle]
        yield event[middle:]
    if _dice(talk) % 2:
        yield b"data: [DONE]\r\n\r\n"


def _bad_call(talk: Conversation, reply: Reply) -> Reply:
    """The first call has arguments that are no JSON, or names no tool; once that came back, the right one follows."""
    if talk.uses:
        return reply
    first, *others = reply.calls
    broken = first.arguments[: len(first.arguments) // 2]
    call = ToolCall(first.name, broken) if _dice(talk) % 2 else ToolCall("no_such_tool", first.arguments)
    return Reply(reply.text, (call, *others))


def _dice(talk: Conversation) -> int:
    seed = f"{talk.role}\0{talk.wish}\0{len(talk.uses)}"
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4])


def _in_prose(text: str) -> str:
    return f"Let me think {{step by step}} about this. {{\n\n{text}\n\nI hope that this helps! }}:-)"


def _in_fences(text: str) -> str:
    return f"Here is an example: {{}}\n```json\n{text}\n```\n"


def _cut_off(text: str) -> str:
    return text[: len(text) * 2 // 3]


def _in_a_list(text: str) -> str:
    return f"[{text}, null, 42]"


def _other_keys(text: str) -> str:
    return json.dumps({"result": "yes", "remarks": len(text), "verdikt": "approve"})


def _nothing(_: str) -> str:
    return ""


MISHAPS: tuple[Callable[[str], str], ...] = (_in_prose, _in_fences, _cut_off, _in_a_list, _other_keys, _nothing)
