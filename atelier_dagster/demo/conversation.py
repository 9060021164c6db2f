"""What a chat request holds, as the scripted model needs it: the role asked for, the prompt, the tools and what they
answered. Pure reading of one request's JSON; deciding what to answer is elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

_ROLE = re.compile(r"\s*You are the ([A-Za-z() -]{2,40}?) of a software team\b")
_DATA = re.compile(r'<data name="(?P<name>[^"\n]*)" id="(?P<id>\w+)">\n(?P<text>.*?)\n</data id="(?P=id)">', re.DOTALL)
_TOOL_FAILURE = re.compile(
    r"(?i)\A\W*(error\b|tool execution (failed|aborted)|the arguments provided to the tool are invalid"
    r"|the \w+ tool was called with invalid|you must read)"
)


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model calls. `arguments` is JSON, or what a careless model takes for it."""

    name: str
    arguments: str

    @classmethod
    def of(cls, name: str, **arguments: object) -> ToolCall:
        """A well-formed call."""
        return cls(name, json.dumps(arguments, ensure_ascii=False))


@dataclass(frozen=True)
class Reply:
    """What the model answers: text, or tools to call, or both."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class ToolUse:
    """A call made earlier in the conversation, and what the tool answered."""

    name: str
    arguments: Mapping[str, Any]
    output: str

    @property
    def failed(self) -> bool:
        """Whether the agent refused the call or the tool reported an error of its own."""
        return bool(_TOOL_FAILURE.match(self.output))


@dataclass(frozen=True)
class Conversation:
    """One chat request. `role` is "" when the prompt does not begin by naming one."""

    role: str
    prompt: str
    system: str = ""
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    uses: tuple[ToolUse, ...] = ()

    def data(self, name: str) -> tuple[str, ...]:
        """Every text that the prompt fences as data under this name."""
        return tuple(found["text"] for found in _DATA.finditer(self.prompt) if found["name"] == name)

    @property
    def wish(self) -> str:
        """What is asked for: the ticket, or the whole prompt where none is fenced."""
        return "\n".join(self.data("ticket")) or self.prompt


def read_conversation(request: Mapping[str, Any]) -> Conversation:
    """The conversation in a chat completion request; anything of the wrong form reads as absent."""
    messages = [_dict(message) for message in _list(request.get("messages"))]
    system = "\n\n".join(_text(m.get("content")) for m in messages if m.get("role") in ("system", "developer"))
    prompt = next((_text(m.get("content")) for m in messages if m.get("role") == "user"), "")
    named = _ROLE.match(system) or _ROLE.match(prompt)
    return Conversation(
        role=named.group(1).strip().lower() if named else "",
        prompt=prompt,
        system=system,
        tools=_tools(request),
        uses=tuple(_uses(messages)),
    )


def _tools(request: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    functions = (_dict(_dict(tool).get("function")) for tool in _list(request.get("tools")))
    return {str(f["name"]): _dict(f.get("parameters")) for f in functions if f.get("name")}


def _uses(messages: Sequence[Mapping[str, Any]]) -> list[ToolUse]:
    outputs = {str(m.get("tool_call_id")): _text(m.get("content")) for m in messages if m.get("role") == "tool"}
    uses: list[ToolUse] = []
    for message in messages:
        for call in map(_dict, _list(message.get("tool_calls"))):
            function = _dict(call.get("function"))
            if (identifier := str(call.get("id"))) in outputs:
                arguments = _arguments(function.get("arguments"))
                uses.append(ToolUse(str(function.get("name")), arguments, outputs[identifier]))
    return uses


def _arguments(raw: object) -> Mapping[str, Any]:
    if isinstance(raw, Mapping):
        return cast("Mapping[str, Any]", raw)
    try:
        return _dict(json.loads(raw)) if isinstance(raw, str) else {}
    except ValueError:
        return {}


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = (_dict(part) for part in _list(content))
    return "\n".join(str(part["text"]) for part in parts if isinstance(part.get("text"), str))


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
