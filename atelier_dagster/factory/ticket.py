"""Tickets and their names. Belongs here: keys, the ticket as read, its analysis. Not here: how a tracker is asked."""

from __future__ import annotations

import hashlib
import re

from pydantic import BaseModel, ConfigDict, Field

from atelier_dagster.factory.answers import clean, last_object, texts
from atelier_dagster.factory.errors import InvalidInput

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_TRACKER = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_SEPARATOR = "~"


class Frozen(BaseModel):
    """Base of every value of the domain: immutable, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _check_name(part: str, what: str) -> str:
    if not _NAME.fullmatch(part) or part.endswith((".git", ".")) or ".." in part:
        raise InvalidInput(f"{what} {part!r} is not a valid name", fix="use letters, digits, '.', '_' and '-'")
    return part


class RepoRef(Frozen):
    """A repository on a configured tracker or forge. `owner` may have several parts (GitLab subgroups)."""

    tracker: str
    owner: str
    name: str

    def __str__(self) -> str:
        return f"{self.tracker}/{self.owner}/{self.name}"

    @property
    def path(self) -> str:
        """`owner/name`, as forges write it."""
        return f"{self.owner}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> RepoRef:
        """Parse `tracker/owner/repo`. Raises `InvalidInput`."""
        parts = text.split("/")
        if len(parts) < 3 or not _TRACKER.fullmatch(parts[0]):
            raise InvalidInput(f"{text!r} is not a repository", fix="write tracker/owner/repo, e.g. local/demo/shop")
        for part in parts[1:]:
            _check_name(part, "repository part")
        return cls(tracker=parts[0], owner="/".join(parts[1:-1]), name=parts[-1])


class TicketKey(Frozen):
    """Names one ticket everywhere: `tracker/owner/repo#number` for people, `tracker~owner~repo~number` as partition."""

    repo: RepoRef
    number: int = Field(ge=1, le=2**53)

    def __str__(self) -> str:
        return f"{self.repo}#{self.number}"

    @classmethod
    def parse(cls, text: str) -> TicketKey:
        """Parse `tracker/owner/repo#number`. Raises `InvalidInput`."""
        repo, mark, number = text.strip().rpartition("#")
        if not mark or not number.isascii() or not number.isdigit() or len(number) > 15 or int(number) < 1:
            raise InvalidInput(f"{text!r} is not a ticket", fix="write tracker/owner/repo#number: local/demo/shop#1")
        return cls(repo=RepoRef.parse(repo), number=int(number))

    @property
    def partition(self) -> str:
        """The Dagster partition key. `~` occurs in no forge's names, so the mapping is exact both ways."""
        return _SEPARATOR.join([self.repo.tracker, *self.repo.owner.split("/"), self.repo.name, str(self.number)])

    @classmethod
    def from_partition(cls, key: str) -> TicketKey:
        """Inverse of `partition`. Raises `InvalidInput`."""
        *repo, number = key.split(_SEPARATOR)
        if len(repo) < 3:
            raise InvalidInput(f"{key!r} is not a ticket's partition key", fix="expected tracker~owner~repo~number")
        return cls.parse(f"{'/'.join(repo)}#{number}")

    @property
    def slug(self) -> str:
        """A short DNS-safe name (at most 40 characters) that no other ticket shares."""
        digest = hashlib.sha256(self.partition.encode()).hexdigest()[:8]
        readable = re.sub(r"[^a-z0-9]+", "-", self.repo.name.lower()).strip("-")[:18].rstrip("-") or "repo"
        return f"{readable}-{str(self.number)[:12]}-{digest}"


def workshop_name(key: TicketKey, cycle: int, part: str) -> str:
    """Name of a ticket's workshop: a DNS label of at most 63 characters; names its cycle from the second on."""
    clean = re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-")
    if clean != part or len(clean) > 10:
        clean = f"{clean[:5].strip('-') or 'x'}{hashlib.sha256(part.encode()).hexdigest()[:5]}"
    return f"pm{cycle if cycle > 1 else ''}-{key.slug}-{clean}"


def branch_name(key: TicketKey, cycle: int, part: str = "") -> str:
    """Branch of a sub-task (`part`) or, without one, the integration branch that heads the pull request."""
    stem = f"atelier/{key.number}" + (f".{cycle}" if cycle > 1 else "")
    clean = re.sub(r"[^A-Za-z0-9]+", "-", part).strip("-")[:40]
    if part and clean != part:
        clean = f"{clean}-{hashlib.sha256(part.encode()).hexdigest()[:6]}".strip("-")
    return stem + (f"-{clean}" if part else "")


class Ticket(Frozen):
    """A ticket as it was read, with the code it is to change. `base_commit` is "" on an empty repository."""

    key: TicketKey
    title: str
    body: str
    author: str
    labels: tuple[str, ...] = ()
    url: str = ""
    base_branch: str
    base_commit: str = ""
    root_entries: tuple[str, ...] | None = None
    """Names at the root of `base_commit`; None when they could not be read ("unknown" is not "empty")."""

    @property
    def is_greenfield(self) -> bool:
        """True only when the repository is known to hold nothing."""
        return self.root_entries == ()


class Resolution(Frozen):
    """How an earlier ticket was solved, as the knowledge index returns it."""

    ticket: str
    title: str
    summary: str
    score: float = 0.0


class Analysis(Frozen):
    """What the ticket asks for: a job story and 2-5 testable acceptance criteria."""

    job_story: str
    criteria: tuple[str, ...]
    similar: tuple[Resolution, ...] = ()
    concerns: tuple[str, ...] = ()
    """What went wrong while analysing (an answer that could not be read), for the human to see."""


_CRITERIA = (2, 5)
_TEXT_LENGTH = 2_000


def parse_analysis(text: str, ticket: Ticket) -> Analysis:
    """The analyst's answer. Never raises: what cannot be read falls back to the ticket's title, with a concern."""
    answer = last_object(text, ("job_story",)) or last_object(text, ("criteria",))
    story = answer.get("job_story") if answer else None
    criteria = texts(answer.get("criteria"), _CRITERIA[1] + 1, _TEXT_LENGTH) if answer else ()
    concerns: list[str] = []
    if not isinstance(story, str) or not story.strip():
        story = ticket.title
        concerns.append("the analyst's job story could not be read; the ticket's title stands for it")
    if not criteria:
        criteria = (f"What the ticket asks for is done: {clean(ticket.title, _TEXT_LENGTH)}",)
        concerns.append("the analyst's acceptance criteria could not be read; the ticket's title stands for them")
    elif not _CRITERIA[0] <= len(criteria) <= _CRITERIA[1]:
        concerns.append(
            f"the analyst gave {'only one' if len(criteria) < _CRITERIA[0] else 'too many'} of 2-5 criteria"
        )
    return Analysis(job_story=clean(story, _TEXT_LENGTH), criteria=criteria[: _CRITERIA[1]], concerns=tuple(concerns))
