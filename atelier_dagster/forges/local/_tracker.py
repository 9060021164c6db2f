"""The embedded tracker: tickets as Markdown files that any editor can write. Not here: pull requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from atelier_dagster.factory.errors import AtelierError, InvalidInput, NotFound
from atelier_dagster.factory.ticket import RepoRef, TicketKey
from atelier_dagster.files import write_atomic
from atelier_dagster.forges.local._documents import (
    MAX_BYTES,
    Document,
    DocumentUnreadable,
    current_user,
    read_document,
    render,
)
from atelier_dagster.forges.local._index import changes
from atelier_dagster.forges.local._store import NUMBERED, Note, Store, now, numbers
from atelier_dagster.ports import Check, Comment, Issue

_OPEN = {"", "open", "opened", "reopened", "todo"}
_CLOSED = {"closed", "close", "done"}


class LocalTracker:
    """Tickets of the repositories below `root`: `<root>/<owner>/<repo>/tickets/<n>.md`, comments beside them.

    A ticket's author is whom its front matter names, if the file belongs to the owner of `root`, else the user who
    owns the file. Whoever owns `root` may write, and the `writers` in whose name they wrote something.
    """

    def __init__(
        self, root: Path, *, bot: str = "atelier[bot]", tracker: str = "local", writers: Iterable[str] = ()
    ) -> None:
        self._store = Store.open(root, tracker, bot, writers)

    async def preflight(self) -> Sequence[Check]:
        """Whether the directory can be used, and every file in it that cannot be understood."""
        first = self._store.check_root()
        if not first.ok:
            return [first]
        found = [first]
        for repo in self._store.repositories():
            for error in await self.problems(repo):
                found.append(Check(f"tickets of {repo}", ok=False, detail=error.message, fix=error.fix, required=False))
        return found

    async def repositories(self) -> Sequence[RepoRef]:
        """Every repository below the root."""
        return self._store.repositories()

    async def issues_changed_since(self, repo: RepoRef, cursor: str) -> tuple[Sequence[Issue], str]:
        """Tickets whose file or comments changed. A deleted file counts as a closed ticket.

        A file that cannot be understood is left out, and told by `problems`; it is back once it is mended.
        """
        async with self._store.locked(repo) as place:
            changed = changes(place / "tickets", cursor)
        issues = [_deleted(repo, number) for number in changed.gone]
        for number in changed.present:
            try:
                issues.append(self._issue(TicketKey(repo=repo, number=number)))
            except (DocumentUnreadable, NotFound):
                continue
        return sorted(issues, key=lambda issue: issue.key.number), changed.cursor

    async def problems(self, repo: RepoRef) -> Sequence[AtelierError]:
        """One error for each file among the tickets and comments that cannot be understood."""
        directory = self._store.existing(repo) / "tickets"
        found: list[AtelierError] = [
            DocumentUnreadable(f"{path} is not named as a ticket", fix="name it <number>.md, e.g. 7.md")
            for path in sorted(directory.glob("*.md"))
            if not path.name.startswith(".") and not NUMBERED.fullmatch(path.name)
        ]
        for number in numbers(directory):
            try:
                self._issue(TicketKey(repo=repo, number=number))
            except DocumentUnreadable as error:
                found.append(error)
            found += self._store.problems(directory / str(number) / "comments")
        return found

    async def get_issue(self, key: TicketKey) -> Issue:
        """One ticket. Raises `NotFound`, `DocumentUnreadable`."""
        return self._issue(key)

    async def comments(self, key: TicketKey) -> Sequence[Comment]:
        """All comments of a ticket, oldest first."""
        path = self._ticket(key)
        return [self._store.comment(note) for note in self._store.notes(_comments(path))]

    async def upsert_comment(self, key: TicketKey, marker: str, body: str) -> Comment:
        """Post the bot's comment that has this marker, or edit it."""
        async with self._store.locked(key.repo):
            note = self._store.upsert_note(_comments(self._ticket(key)), marker, body)
        return self._store.comment(note)

    async def claim_issue(self, key: TicketKey, label: str) -> None:
        """Open the ticket and give it the label, where it is not so."""
        labels = self._issue(key).labels
        await self._edit(key, state="open", labels=labels if label in labels else (*labels, label))

    async def close_issue(self, key: TicketKey) -> None:
        """Close the ticket."""
        await self._edit(key, state="closed")

    # --------------------------------------------------------------- beyond the port: what people do on a tracker

    async def create_issue(
        self, repo: RepoRef, *, title: str, body: str, labels: Sequence[str] = (), author: str = ""
    ) -> Issue:
        """Write a new ticket under the next number. Raises `NotFound`, `InvalidInput`."""
        if not title.strip():
            raise InvalidInput("a ticket needs a title", fix="give one")
        stamp = now()
        fields = {
            "title": " ".join(title.split()),
            "author": author or current_user(),
            "labels": list(labels),
            "state": "open",
            "created": stamp,
            "updated": stamp,
        }
        data = render(fields, body)
        if len(data) > MAX_BYTES:
            raise InvalidInput(f"the ticket is larger than {MAX_BYTES} bytes", fix="shorten it")
        async with self._store.locked(repo) as place:
            number = self._store.create_numbered(place / "tickets", data)
        return self._issue(TicketKey(repo=repo, number=number))

    async def set_labels(self, key: TicketKey, labels: Sequence[str]) -> Issue:
        """Replace the ticket's labels."""
        await self._edit(key, labels=tuple(labels))
        return self._issue(key)

    async def reopen(self, key: TicketKey) -> Issue:
        """Open the ticket again; opening an open one is fine."""
        await self._edit(key, state="open")
        return self._issue(key)

    async def add_comment(self, key: TicketKey, body: str, author: str = "") -> Comment:
        """Post a comment as a person: the operating-system user, unless another author is named."""
        async with self._store.locked(key.repo):
            fields = {"author": author or current_user()}
            note: Note = self._store.add_note(_comments(self._ticket(key)), fields, body)
        return self._store.comment(note)

    # ------------------------------------------------------------------------------------------------- internals

    def _ticket(self, key: TicketKey) -> Path:
        path = self._store.existing(key.repo) / "tickets" / f"{key.number}.md"
        if not path.exists():
            raise NotFound(f"there is no ticket {key}", fix=f"create {path}")
        return path

    def _issue(self, key: TicketKey) -> Issue:
        path = self._ticket(key)
        document = read_document(path)
        author = self._store.author(document)
        title, body = _title(document)
        return Issue(
            key=key,
            title=title or f"Ticket {key.number}",
            body=body,
            author=author,
            labels=document.words("labels"),
            is_open=_is_open(document, path),
            url=path.as_uri(),
            updated_at=max(document.modified, document.time("updated")),
            author_may_write=self._store.may_write(author, document.owner_uid),
        )

    async def _edit(self, key: TicketKey, **wanted: str | tuple[str, ...]) -> None:
        async with self._store.locked(key.repo):
            path = self._ticket(key)
            document = read_document(path)
            fields = dict(document.fields)
            if all(_same(document, name, value) for name, value in wanted.items()):
                return
            # Written by this process, somebody else's file would become one that its claimed author wrote.
            fields["author"] = self._store.author(document)
            fields |= {**wanted, "updated": now()}
            write_atomic(path, render(fields, document.body))


def _same(document: Document, name: str, value: str | tuple[str, ...]) -> bool:
    if name == "state" and isinstance(value, str):
        return _is_closed_word(document.text(name)) == _is_closed_word(value)
    return document.words(name) == value


def _is_closed_word(state: str) -> bool:
    return state.lower() in _CLOSED


def _is_open(document: Document, path: Path) -> bool:
    state = document.text("state").lower()
    if state not in _OPEN | _CLOSED:
        raise DocumentUnreadable(f"{path}: state {state[:50]!r} is unknown", fix="write 'open' or 'closed'")
    return state not in _CLOSED


def _title(document: Document) -> tuple[str, str]:
    """Title and body: without a title in the front matter, a ticket's first line is its title."""
    if title := " ".join(document.text("title").split()):
        return title, document.body
    first, _, rest = document.body.lstrip().partition("\n")
    return first.lstrip("#").strip(), rest.strip("\n")


def _comments(ticket: Path) -> Path:
    return ticket.with_suffix("") / "comments"


def _deleted(repo: RepoRef, number: int) -> Issue:
    key = TicketKey(repo=repo, number=number)
    return Issue(
        key=key,
        title=f"Ticket {number} (deleted)",
        body="",
        author="",
        labels=(),
        is_open=False,
        url="",
        updated_at=datetime.now(UTC),
    )
