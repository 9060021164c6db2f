"""Whether a model endpoint would work, for `atelier doctor`. Belongs here: one cheap request. Not here: paid calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pydantic import SecretStr

from atelier_dagster.gateway._failures import FIX_KEY, FIX_MODEL, FIX_URL, UNKNOWN_KEY
from atelier_dagster.ports import Check

_WITHIN = 5.0
_ADDRESS = "model endpoint"
_MODEL = "model"


async def check_endpoint(base_url: str, api_key: SecretStr | None, model: str) -> Sequence[Check]:
    """Checks of address and key, then of the model's name, from one `GET /models` within 5 s."""
    if not base_url:
        return [Check(_ADDRESS, ok=False, detail="no address is set", fix=FIX_URL)]
    named = Check(_MODEL, ok=bool(model), detail=model or "no model is set", fix="" if model else FIX_MODEL)
    answer = await _ask(base_url, api_key)
    if isinstance(answer, Check):
        return [answer, named]
    reached = Check(_ADDRESS, ok=True, detail=f"{base_url} answers")
    return [reached, _offered(model, answer) if model else named]


async def _ask(base_url: str, api_key: SecretStr | None) -> Check | object:
    """The parsed list of models, or the check that failed."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key.get_secret_value()}"} if api_key else {}
    try:
        async with httpx.AsyncClient(timeout=_WITHIN) as client:
            response = await client.get(f"{base_url}/models", headers=headers)
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        return Check(_ADDRESS, ok=False, detail=f"{base_url} cannot be reached: {reason}", fix=FIX_URL)
    return _read(base_url, api_key, response.status_code, response.content)


def _read(base_url: str, api_key: SecretStr | None, status: int, body: bytes) -> Check | object:
    import json

    if status in {401, 403} or UNKNOWN_KEY.encode() in body[:1000]:
        what = "refuses the key" if api_key else "wants a key"
        return Check(_ADDRESS, ok=False, detail=f"{base_url} {what} ({status})", fix=FIX_KEY)
    if status != 200:
        return Check(_ADDRESS, ok=False, detail=f"{base_url}/models answered {status}", fix=FIX_URL)
    try:
        return json.loads(body)
    except ValueError:
        return Check(_ADDRESS, ok=False, detail=f"{base_url} is no OpenAI-compatible endpoint", fix=FIX_URL)


def _offered(model: str, answer: object) -> Check:
    """Endpoints may route names that they do not list, so a missing name warns and does not fail."""
    listed = cast("dict[str, Any]", answer).get("data") if isinstance(answer, dict) else None
    entries = cast("list[Any]", listed) if isinstance(listed, list) else []
    names = sorted({str(cast("dict[str, Any]", entry).get("id")) for entry in entries if isinstance(entry, dict)})
    if model in names or not names:
        return Check(_MODEL, ok=True, detail=model if names else f"{model} (the endpoint lists no models)")
    shown = ", ".join(names[:10])
    detail = f"{model} is not among the models that the endpoint lists: {shown}"
    return Check(_MODEL, ok=False, detail=detail, fix=FIX_MODEL, required=False)
