"""Reading of OpenCode's `--format json` event lines. Pure: bytes in, an `AgentAnswer` out, whatever the bytes are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from atelier_dagster.ports import AgentAnswer, ExecResult

_MESSAGE_LIMIT = 2_000
_TEXT_LIMIT = 200_000
_TOKEN_LIMIT = 10**12
"""A step that reports more tokens than this reports nonsense."""


@dataclass
class _Transcript:
    """What the events said, in their order."""

    texts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Text parts by message, oldest message first."""
    tokens_in: int = 0
    tokens_out: int = 0
    steps: int = 0
    error: Mapping[str, Any] | None = None
    """The last error that nothing came after."""


def read_answer(result: ExecResult) -> AgentAnswer:
    """The agent's last message, or why there is none. Never raises."""
    transcript = _Transcript()
    for event in _events(result.stdout):
        _take(transcript, event)
    text = "\n".join(next(reversed(transcript.texts.values()), list[str]()))[-_TEXT_LIMIT:]
    code, error = _failure(result, transcript, text)
    return AgentAnswer(
        text=text,
        error=error,
        error_code=code,
        tokens_in=transcript.tokens_in,
        tokens_out=transcript.tokens_out,
        steps=transcript.steps,
    )


def bounded(text: str, limit: int = _MESSAGE_LIMIT) -> str:
    """The end of a text on one line, without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[-limit:]).split())


def _events(stdout: bytes) -> Iterator[Mapping[str, Any]]:
    """The lines that are JSON objects; where output was cut, the halves of a line are neither."""
    for line in stdout.splitlines():
        if not line.lstrip().startswith(b"{"):
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield cast("dict[str, Any]", event)


def _take(transcript: _Transcript, event: Mapping[str, Any]) -> None:
    part = _dict(event.get("part"))
    match event.get("type"):
        case "text" if isinstance(part.get("text"), str):
            transcript.texts.setdefault(str(part.get("messageID")), []).append(part["text"])
            transcript.error = None
        case "step_finish":
            tokens = _dict(part.get("tokens"))
            cache = _dict(tokens.get("cache"))
            transcript.steps += 1
            transcript.tokens_in += _count(tokens.get("input")) + _count(cache.get("read")) + _count(cache.get("write"))
            transcript.tokens_out += _count(tokens.get("output")) + _count(tokens.get("reasoning"))
            transcript.error = None
        case "error":
            transcript.error = _dict(event.get("error"))
        case _:
            pass


def _failure(result: ExecResult, transcript: _Transcript, text: str) -> tuple[str, str]:
    """Code and message; both empty when the agent ended well."""
    if result.timed_out:
        return "AGENT_TIMEOUT", f"the agent was stopped at its time limit after {result.duration:.0f} s"
    if transcript.error is not None:
        return _model_failure(transcript.error)
    if result.exit_code is None:
        return "AGENT_CRASHED", bounded(f"the agent was killed: {result.reason or 'no reason is known'}")
    if result.exit_code != 0:
        said = result.stderr[-4 * _MESSAGE_LIMIT :].decode(errors="replace")
        return "AGENT_CRASHED", bounded(f"the agent ended with exit code {result.exit_code}: {said}")
    if not text.strip() and not transcript.steps:
        return "AGENT_SILENT", "the agent ended well without having said or done anything"
    return "", ""


def _model_failure(error: Mapping[str, Any]) -> tuple[str, str]:
    data = _dict(error.get("data"))
    status = data.get("statusCode")
    message = data.get("message")
    described = f"{error.get('name') or 'error'}: {message if isinstance(message, str) else ''}"
    body = data.get("responseBody")
    # LiteLLM names a spent budget in the error's type; its status has differed between releases.
    if "budget_exceeded" in f"{described} {body if isinstance(body, str) else ''}" or status == 422:
        code = "MODEL_BUDGET"
    elif status == 401 or error.get("name") == "ProviderAuthError":
        code = "MODEL_AUTH"
    else:
        code = "MODEL_ERROR"
    return code, bounded(f"{described} (HTTP {status})" if isinstance(status, int) else described)


def _dict(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _count(value: object) -> int:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _TOKEN_LIMIT
    return int(cast("float", value)) if usable else 0
