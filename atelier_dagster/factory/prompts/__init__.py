"""What each role is asked: one template a role. Untrusted text enters only through `fence`, as data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.factory.ticket import Ticket

ROLES = (
    "analyst",
    "planner",
    "greenfield",
    "architect",
    "code",
    "security",
    "ops",
    "developer",
    "rework",
    "qa",
)

_USER_PART = "\x1euser\x1e"

_TEXT_LIMIT = 200_000
"""Characters of one fenced text; diffs are split before they get here."""


@dataclass(frozen=True)
class Prompt:
    """A system message, which is ours alone, and a user message, in which everything untrusted is fenced."""

    system: str
    user: str

    def as_one(self) -> str:
        """Both in one text, for agents that take a single prompt."""
        return f"{self.system}\n\n{self.user}"


def fence(label: str, text: object) -> str:
    """Untrusted text between markers that it cannot contain.

    The markers carry a hash of the text, so that no text can hold its own end, and the same text always gives the
    same prompt. `label` is ours, never the outside's.
    """
    data = str(text)
    if len(data) > _TEXT_LIMIT:
        data = data[:_TEXT_LIMIT] + "\n[cut here: the rest is too long]"
    mark = hashlib.sha256(data.encode("utf-8", "replace")).hexdigest()[:16]
    while mark in data:  # it would have to hold its own hash; costs nothing to be sure
        mark = hashlib.sha256(mark.encode()).hexdigest()[:16]
    return f'<data name="{label}" id="{mark}">\n{data}\n</data id="{mark}">'


def fence_lines(label: str, lines: object) -> str:
    """A list of untrusted lines, fenced as one text; line breaks inside a line become spaces."""
    found = [" ".join(str(line).split()) for line in lines] if isinstance(lines, list | tuple) else []  # type: ignore[reportUnknownVariableType]
    return fence(label, "\n".join(f"- {line}" for line in found) or "(none)")


def fence_ticket(ticket: Ticket) -> str:
    """Title and body as they were written by whoever wrote them."""
    return fence("ticket", f"Title: {ticket.title}\nAuthor: {ticket.author}\n\n{ticket.body or '(no description)'}")


@cache
def _environment() -> Environment:
    loader = PackageLoader("atelier_dagster.factory", "prompts")
    # these are prompts, not pages: HTML escaping would change what is said, and `fence` is what keeps data apart
    environment = Environment(
        loader=loader,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701
    )
    environment.globals.update({"fence": fence, "fence_lines": fence_lines, "fence_ticket": fence_ticket})  # type: ignore[reportUnknownMemberType]
    return environment


def render(role: str, **context: Any) -> Prompt:
    """The prompt of a role. Raises `InvalidInput` for an unknown role, and Jinja's `UndefinedError` for a missing name.

    What stands before `user_part` in a template holds only our own words; what comes after it is the case.
    """
    if role not in ROLES:
        raise InvalidInput(f"there is no role {role!r}", fix=f"one of {', '.join(ROLES)}")
    text = _environment().get_template(f"{role}.j2").render(user_part=_USER_PART, **context)
    system, _, user = text.partition(_USER_PART)  # the first one is ours: only our own words come before it
    return Prompt(system.strip(), user.strip())
