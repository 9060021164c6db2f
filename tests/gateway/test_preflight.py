"""What `atelier doctor` hears of a model endpoint."""

from __future__ import annotations

import pytest

from atelier_dagster.gateway import OpenAIGateway
from tests.support.openai_wire import KEY, Wire


async def test_an_endpoint_that_offers_the_model_passes(wire: Wire) -> None:
    wire.answers = [wire.plain("200 OK", {"object": "list", "data": [{"id": "model-a"}, {"id": "b"}]})]
    assert [check.ok for check in await wire.gateway().preflight()] == [True, True]
    assert wire.requests[0].path == "/v1/models"


async def test_a_model_that_is_not_listed_is_a_warning(wire: Wire) -> None:
    wire.answers = [wire.plain("200 OK", {"data": [{"id": "b"}]})]
    _, model = await wire.gateway().preflight()
    assert (model.ok, model.required) == (False, False)
    assert "ATELIER_LLM_MODEL" in model.fix


@pytest.mark.parametrize("body", [{}, [], {"data": "x"}, {"data": [1]}, "x", None])
async def test_an_endpoint_that_lists_nothing_passes(wire: Wire, body: object) -> None:
    wire.answers = [wire.plain("200 OK", body)]
    assert [check.ok for check in await wire.gateway().preflight()] == [True, True]


@pytest.mark.parametrize(
    ("status", "body", "fix"),
    [
        ("401 U", b"{}", "ATELIER_LLM_API_KEY"),
        ("403 F", b"{}", "ATELIER_LLM_API_KEY"),
        ("404 N", b"{}", "ATELIER_LLM_BASE_URL"),
        ("200 OK", b"<html>", "ATELIER_LLM_BASE_URL"),
        ("500 I", b"", "ATELIER_LLM_BASE_URL"),
    ],
)
async def test_each_failure_says_what_to_set(wire: Wire, status: str, body: bytes, fix: str) -> None:
    wire.answers = [wire.plain(status, body)]
    address, _ = await wire.gateway().preflight()
    assert not address.ok
    assert fix in address.fix
    assert KEY not in repr(address)


async def test_what_is_missing_is_named() -> None:
    (address,) = await OpenAIGateway("", None, "").preflight()
    assert "ATELIER_LLM_BASE_URL" in address.fix
    unreachable, model = await OpenAIGateway("http://127.0.0.1:9/v1", None, "").preflight()
    assert not unreachable.ok
    assert "ATELIER_LLM_MODEL" in model.fix
