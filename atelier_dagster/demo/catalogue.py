"""The demo's tickets, and how each must end. Reading them only: running them is the command line's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from atelier_dagster.factory.errors import NotFound

_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n(.*)\Z", re.DOTALL)

ReviewRole = Literal["code", "security", "ops"]


class Expectation(BaseModel):
    """What the end of a ticket's journey must look like.

    Counts are of refused artifacts: plans refused by guards or architect, deliveries whose tests failed, deliveries
    that a reviewer refused (the last one opens the gate with its concern when the budget of three redos is spent).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    merged: bool = True
    qa: Literal["pass", "fail"] = "pass"
    reviews: tuple[ReviewRole, ...] = ("code",)
    """Reviews that are triggered."""
    tasks: int = 1
    refused_plans: int = 0
    failed_tests: int = 0
    refused_reviews: int = 0
    concerns: bool = False
    """Whether the pull request shows an outstanding concern."""
    screenshot: bool = False
    """Whether QA leaves a picture where a browser can be had."""


class DemoTicket(BaseModel):
    """A ticket of the demo. `repository` None: an empty one. `broken_qa`: the runner must keep QA's workshop from
    starting."""

    model_config = ConfigDict(frozen=True)

    name: str
    title: str
    body: str
    labels: tuple[str, ...]
    repository: str | None
    broken_qa: bool
    expect: Expectation


@cache
def catalogue() -> Mapping[str, DemoTicket]:
    """All tickets by name, in the order in which the demo shows them."""
    folder = resources.files("atelier_dagster.demo").joinpath("tickets")
    return {name: _read(name, folder.joinpath(f"{name}.md").read_text(encoding="utf-8")) for name in _ORDER}


def get_ticket(name: str) -> DemoTicket:
    """One ticket. Raises `NotFound`, naming those that there are."""
    try:
        return catalogue()[name]
    except KeyError:
        raise NotFound(f"there is no demo ticket {name!r}", fix=f"one of {', '.join(_ORDER)}") from None


_ORDER = (
    "url-shortener",
    "rest-api",
    "bad-split",
    "auth-module",
    "rename-field",
    "failing-tests",
    "stubborn",
    "two-halves",
    "broken-infra",
)


def _read(name: str, text: str) -> DemoTicket:
    found = _FRONT_MATTER.match(text)
    assert found is not None, f"{name}: no front matter"
    head: dict[str, Any] = yaml.safe_load(found.group(1))
    own = {key: head.pop(key) for key in ("title", "labels", "repository")}
    broken = bool(head.pop("broken_qa", False))
    return DemoTicket(name=name, body=found.group(2).strip(), broken_qa=broken, expect=Expectation(**head), **own)
