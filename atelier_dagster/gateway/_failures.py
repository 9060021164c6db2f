"""What a failed model call means. Belongs here: status, type and code to an error. Not here: calls and retries."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from typing import Any, cast

from atelier_dagster.factory.errors import (
    AtelierError,
    ModelAuthFailed,
    ModelBudgetExceeded,
    ModelRefused,
    ModelUnavailable,
)

_BUDGET = {"budget_exceeded", "insufficient_quota"}
"""Error types of LiteLLM (with status 400, 422 or 429, by release) and of OpenAI."""
UNKNOWN_KEY = "no_db_connection"
"""What LiteLLM without a database says of every key but its master key, with status 400."""
_LATER = {408, 409, 425, 429}
_LONGEST_DETAIL = 500

FIX_KEY = "set ATELIER_LLM_API_KEY to a key that the model endpoint accepts"
FIX_URL = "set ATELIER_LLM_BASE_URL to an OpenAI-compatible URL, e.g. https://llm.example.org/v1"
FIX_MODEL = "set ATELIER_LLM_MODEL to a model that the endpoint offers"


class Failure(Exception):
    """One attempt's failure: the error to raise if it was the last, and how long the server asks to wait (seconds)."""

    def __init__(self, error: AtelierError, wait: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = wait


def unavailable(detail: str) -> Failure:
    """An attempt without a useful answer; the next may have one."""
    return Failure(ModelUnavailable(detail, fix="try again later; check the model endpoint's own log"))


def from_status(status: int, body: object, headers: Mapping[str, str]) -> Failure:
    """Meaning of an HTTP error answer, or of an error sent in a stream (whose code stands for the status)."""
    kind, detail = _said(body)
    told = f"the model endpoint answered {status or 'an error'}{f' ({kind})' if kind else ''}: {detail}"
    if kind in _BUDGET:
        return Failure(ModelBudgetExceeded(told, fix="raise the budget, or deliver what there is"))
    if status in {401, 403} or kind == UNKNOWN_KEY:
        return Failure(ModelAuthFailed(told, fix=FIX_KEY))
    if status in _LATER or status >= 500 or not status:
        failure = unavailable(told)
        failure.wait = retry_after(headers)
        return failure
    if status == 404 or status < 400:
        return Failure(ModelRefused(told, fix=f"{FIX_URL}; {FIX_MODEL}"))
    return Failure(ModelRefused(told, fix="read the reason; a shorter ticket or another model may help"))


def from_stream(body: object) -> Failure:
    """Meaning of an error object that came instead of the rest of an answer."""
    code = str(_mapping(body).get("code") or "")
    return from_status(int(code) if code.isascii() and code.isdecimal() else 0, body, {})


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that `Retry-After` asks for (RFC 9110, 10.2.3: a number or a date); None without one."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        return max(0.0, float(value)) if value[0].isdecimal() else _until(value)
    except ValueError:
        return None


def _until(date: str) -> float:
    return max(0.0, email.utils.parsedate_to_datetime(date).timestamp() - time.time())


def _said(body: object) -> tuple[str, str]:
    fields = _mapping(body)
    fields = _mapping(fields.get("error")) or fields
    kinds = [str(fields.get(name) or "") for name in ("type", "code")]
    kind = next((kind for kind in kinds if kind in _BUDGET), kinds[0])
    return kind[:80], str(fields.get("message") or body or "no reason given")[:_LONGEST_DETAIL]


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
