"""The directory below which tickets, repositories and pull requests lie: paths, numbers, notes. Not their meaning."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from atelier_dagster.factory.errors import AtelierError, InvalidInput, NotFound, Unavailable
from atelier_dagster.factory.ticket import RepoRef
from atelier_dagster.files import create_atomic, file_lock, write_atomic
from atelier_dagster.forges.local._documents import (
    Document,
    DocumentUnreadable,
    current_user,
    read_document,
    render,
    user_name,
)
from atelier_dagster.ports import Check, Comment

NUMBERED = re.compile(r"([1-9][0-9]{0,14})\.md")
_MAX_DEPTH = 6
_MAX_NOTES = 10_000


def now() -> str:
    """The present time as it is written into files."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Note:
    """One file of a ticket's or pull request's talk: a comment, a review or a decision."""

    id: str
    document: Document


@dataclass(frozen=True)
class Store:
    """Files below `root`. `writers` may write besides the user who owns `root`."""

    root: Path
    tracker: str
    bot: str
    writers: frozenset[str]

    @classmethod
    def open(cls, root: Path, tracker: str, bot: str, writers: Iterable[str]) -> Store:
        """A store on a directory that need not exist yet."""
        return cls(root.absolute(), tracker, bot, frozenset(writers))

    def place(self, repo: RepoRef) -> Path:
        """Where a repository's files lie. Raises `InvalidInput` for names that could lead elsewhere."""
        checked = RepoRef.parse(str(repo))
        if checked != repo or repo.tracker != self.tracker:
            raise InvalidInput(f"{repo} is not a repository of {self.tracker!r}", fix="write it as `atelier init` did")
        return self.root.joinpath(*repo.owner.split("/"), repo.name)

    def existing(self, repo: RepoRef) -> Path:
        """Like `place`, for a repository that must exist. Raises `NotFound`."""
        place = self.place(repo)
        if not (place / "repo.git" / "HEAD").is_file():
            raise NotFound(f"there is no repository {repo}", fix=f"run: atelier init <path or URL>, below {self.root}")
        return place

    def repositories(self) -> list[RepoRef]:
        """Every repository below the root, by name. Raises `Unavailable` when the root cannot be read."""
        if not self.root.exists():
            return []
        found: list[RepoRef] = []
        with reading(self.root):
            for path in _walk(self.root, _MAX_DEPTH):
                parts = path.relative_to(self.root).parts
                with contextlib.suppress(InvalidInput):
                    found.append(RepoRef.parse("/".join((self.tracker, *parts))))
        return sorted(found, key=str)

    @asynccontextmanager
    async def locked(self, repo: RepoRef) -> AsyncGenerator[Path]:
        """The repository's directory, with every read-modify-write of others kept out."""
        place = self.existing(repo)
        async with file_lock(place / ".lock"):
            yield place

    def may_write(self, name: str, owner_uid: int) -> bool:
        """Whether a file that says it is by `name` is by someone who may write: its owner must own the root too."""
        return self.owns_root(owner_uid) and (name == user_name(owner_uid) or name in self.writers)

    def owns_root(self, uid: int) -> bool:
        """Whether a user owns the root directory."""
        return uid == self.root.stat().st_uid

    # ------------------------------------------------------------------------------------------------ numbers

    def create_numbered(self, directory: Path, data: bytes) -> int:
        """Write a new file under the next number, which no deleted file had. Call with the lock held."""
        directory.mkdir(parents=True, exist_ok=True)
        counter = directory / ".last"
        taken = max(numbers(directory), default=0)
        with contextlib.suppress(FileNotFoundError, ValueError):
            taken = max(taken, int(counter.read_text("ascii")))
        number = taken + 1
        while not create_atomic(directory / f"{number}.md", data):
            number += 1  # a person saved one by that name just now
        write_atomic(counter, str(number).encode())
        return number

    # -------------------------------------------------------------------------------------------------- notes

    def notes(self, directory: Path) -> list[Note]:
        """Readable notes, oldest first. One that cannot be read is left out; `problems` tells of it."""
        return [note for note in self._all_notes(directory) if isinstance(note, Note)]

    def problems(self, directory: Path) -> list[AtelierError]:
        """Errors of the notes that cannot be read."""
        return [note for note in self._all_notes(directory) if isinstance(note, AtelierError)]

    def _all_notes(self, directory: Path) -> list[Note | AtelierError]:
        if not directory.is_dir() or directory.is_symlink():
            return []
        found: list[Note] = []
        errors: list[AtelierError] = []
        with reading(directory):
            names = sorted(path.name for path in directory.iterdir() if _is_note(path.name))
        for name in names[:_MAX_NOTES]:
            try:
                found.append(Note(name.removesuffix(".md"), read_document(directory / name)))
            except DocumentUnreadable as error:
                errors.append(error)
            except NotFound:
                continue  # removed since the listing
        found.sort(key=lambda note: (note.document.time("created"), note.id))
        return [*found, *errors]

    def add_note(self, directory: Path, fields: Mapping[str, str | Sequence[str] | bool], body: str) -> Note:
        """Write a new note and read it back."""
        directory.mkdir(parents=True, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        name = f"{stamp}-{secrets.token_hex(4)}"
        create_atomic(directory / f"{name}.md", render({**fields, "created": now()}, body))
        return Note(name, read_document(directory / f"{name}.md"))

    def upsert_note(self, directory: Path, marker: str, body: str) -> Note:
        """Write the bot's note that has this marker, once. Call with the lock held."""
        for note in self.notes(directory):
            document = note.document
            if document.text("marker") != marker or not self.is_bot(document):
                continue
            fields = {"author": self.bot, "marker": marker, "created": document.time("created").isoformat()}
            if document.body != body.replace("\r\n", "\n").strip("\n"):
                write_atomic(directory / f"{note.id}.md", render({**fields, "updated": now()}, body))
            return Note(note.id, read_document(directory / f"{note.id}.md"))
        return self.add_note(directory, {"author": self.bot, "marker": marker}, body)

    def author(self, document: Document) -> str:
        """Who wrote a file: whom it names, where only the root's owner can have written that; else its owner."""
        claimed = document.text("author")
        return claimed if claimed and self.owns_root(document.owner_uid) else document.owner

    def is_bot(self, document: Document) -> bool:
        """Whether a note is one of ours."""
        return self.author(document) == self.bot

    def comment(self, note: Note) -> Comment:
        """A note as a comment."""
        document = note.document
        author = self.author(document)
        is_bot = author == self.bot
        may_write = not is_bot and self.may_write(author, document.owner_uid)
        return Comment(note.id, author, document.body, document.time("created"), may_write, is_bot)

    # ---------------------------------------------------------------------------------------------- preflight

    def check_root(self) -> Check:
        """Whether the root is a directory that can be written."""
        name = f"{self.tracker} directory"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe = self.root / f".probe-{secrets.token_hex(4)}"
            create_atomic(probe, b"")
            probe.unlink()
        except OSError as error:
            fix = f"make {self.root} a directory that {current_user()} can write"
            return Check(name, ok=False, detail=f"{self.root}: {error.strerror}", fix=fix)
        return Check(name, ok=True, detail=str(self.root))


def numbers(directory: Path) -> list[int]:
    """Numbers of the files `<n>.md`. Raises `Unavailable`."""
    if not directory.is_dir():
        return []
    with reading(directory):
        return sorted(int(match[1]) for path in directory.iterdir() if (match := NUMBERED.fullmatch(path.name)))


def _is_note(name: str) -> bool:
    return name.endswith(".md") and not name.startswith(".")


def _walk(directory: Path, depth: int) -> Iterator[Path]:
    for child in sorted(directory.iterdir()):
        if child.name.startswith(".") or child.is_symlink() or not child.is_dir():
            continue
        if (child / "repo.git").is_dir():
            yield child
        elif depth > 1:
            yield from _walk(child, depth - 1)


@contextlib.contextmanager
def reading(path: Path) -> Generator[None]:
    """What the system says of a directory that cannot be read becomes `Unavailable`: never an empty answer."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}", fix="check the directory's permissions") from None
