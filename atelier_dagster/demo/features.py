"""What the script can build: how a ticket that wants it is recognised, its programs, and how QA checks it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any


@dataclass(frozen=True)
class Edit:
    """A change within a file that exists."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Task:
    """A sub-task that the planner answers with."""

    id: str
    title: str
    scope: tuple[str, ...]


@dataclass(frozen=True)
class Feature:
    """One thing that a ticket can ask for.

    `wants` finds the wish in natural text. `solution` names the folder of its files; `first` the one of a first
    delivery that is wrong. `checks` are HTTP exchanges for QA (see `qa_check.py`), `environment` what the application
    is started with for them. `careless` tasks are the planner's first answer, before anybody objected.
    """

    name: str
    wants: re.Pattern[str]
    story: str
    criteria: tuple[str, ...]
    tasks: tuple[Task, ...]
    solution: str = ""
    first: str = ""
    edits: tuple[Edit, ...] = ()
    command: str = ""
    checks: tuple[Mapping[str, Any], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    careless: tuple[Task, ...] = ()

    def files(self, *, first: bool = False) -> Mapping[str, str]:
        """Path and text of every file to write."""
        folder = self.first if first and self.first else self.solution
        return _tree(folder) if folder else {}


def recognise(text: str) -> tuple[Feature, ...]:
    """What a text asks for, in the order of the catalogue; empty when the script knows no program for it."""
    return tuple(feature for feature in FEATURES if feature.wants.search(text))


def wanted_by_somebody_never_content(text: str) -> bool:
    """Whether a ticket says that its reviewer is never content."""
    return bool(_NEVER_CONTENT.search(text))


_NEVER_CONTENT = re.compile(
    r"(?is)\bnever\b.{0,40}\b(satisf\w+|content|good enough|pleased|happy)|\bperfectionist|\bimpossible to please"
)


@cache
def _tree(folder: str) -> Mapping[str, str]:
    root = resources.files("atelier_dagster.demo").joinpath("solutions", folder)
    return dict(sorted(_walk(root, "")))


def _walk(folder: Traversable, prefix: str) -> Sequence[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for entry in folder.iterdir():
        if entry.name == "__pycache__":
            continue
        path = f"{prefix}{entry.name}"
        found += _walk(entry, f"{path}/") if entry.is_dir() else [(path, entry.read_text(encoding="utf-8"))]
    return found


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.DOTALL)


def _route(name: str, title: str, test: str = "") -> tuple[Task, ...]:
    return (Task(f"{name}-route", title, (f"bookshelf/routes/{name}.py", f"tests/test_{test or name}.py")),)


def _check(name: str, method: str, path: str, status: int, **more: Any) -> Mapping[str, Any]:
    return {"name": name, "method": method, "path": path, "status": status, **more}


_BOOK = _check("a book can be added", "POST", "/books", 201, json={"title": "Dune"}, capture=r'"id": (\d+)')

FEATURES: tuple[Feature, ...] = (
    Feature(
        name="url-shortener",
        wants=_pattern(r"\bshort\w*\b[^.]{0,60}\b(url|link|web address|address)|\b(url|link)s?\b[^.]{0,60}\bshort"),
        story="When I have a long address to share, I want a short one that leads to it, so that it fits in a message.",
        criteria=(
            "GET / answers 200 with an HTML page that has a form for a long address",
            "Sending an http or https address shows its short address; the same address gets the same one",
            "GET on a short address redirects (302) to the long one; an unknown one answers 404",
            "Anything that is no http or https address is refused with 400 and a message",
        ),
        tasks=(Task("shortener", "Build the page, the redirects and their tests", ("**",)),),
        solution="shortener",
        checks=(
            _check("the page has a form", "GET", "/", 200, body="<form"),
            _check(
                "an address gets a short one",
                "POST",
                "/",
                201,
                form={"url": "https://example.org/a/long/one"},
                capture=r'short address is <a href="/(\w+)"',
            ),
            _check("it leads to the long one", "GET", "/{0}", 302, location="https://example.org/a/long/one"),
            _check("unknown ones are not found", "GET", "/no-such-code", 404),
            _check("other things are refused", "POST", "/", 400, form={"url": "javascript:alert(1)"}),
        ),
    ),
    Feature(
        name="search",
        wants=_pattern(r"\b(search\w*|find\w*|look\w* up)\b[^.]{0,80}\b(titles?|names?|books?)\b"),
        story="When I remember part of a title, I want the books that have it, so that I need not read the whole list.",
        criteria=(
            "GET /search?title=TEXT answers 200 with the books whose title holds TEXT, in any case",
            "Nothing found is an empty list",
            "A search without a text is answered with 400",
        ),
        tasks=_route("search", "Answer searches by part of a title"),
        solution="search",
        checks=(
            _BOOK,
            _check("part of a title finds it", "GET", "/search?title=dUN", 200, body="Dune"),
            _check("nothing found is empty", "GET", "/search?title=zzz", 200, body=r"^\[\]$"),
            _check("a text is needed", "GET", "/search", 400),
        ),
    ),
    Feature(
        name="lending",
        wants=_pattern(r"\b(lend\w*|lent|borrow\w*|loans?)\b"),
        story="When somebody takes a book home, I want it noted, so that I know where it is until it comes back.",
        criteria=(
            "POST /loans lends a book to a borrower, once: a second time answers 409",
            "GET /loans lists the books that are lent",
            "POST /returns takes a lent book back; one that is not lent answers 404",
        ),
        tasks=(
            Task("lend-a-book", "Lend a book", ("bookshelf/routes/loans.py", "tests/test_loans.py")),
            Task("take-it-back", "Take a book back", ("bookshelf/routes/returns.py", "tests/test_returns.py")),
        ),
        careless=(
            Task("lend-a-book", "Lend a book", ("bookshelf/routes/**", "tests/test_loans.py")),
            Task("take-it-back", "Take a book back", ("bookshelf/routes/**", "tests/test_returns.py")),
        ),
        solution="lending",
        checks=(
            _BOOK,
            _check("a book is lent", "POST", "/loans", 201, json={"book": 1, "borrower": "Ann"}, body="Ann"),
            _check("only once", "POST", "/loans", 409, json={"book": 1, "borrower": "Bob"}),
            _check("loans are listed", "GET", "/loans", 200, body="Dune"),
            _check("it comes back", "POST", "/returns", 200, json={"book": 1}),
            _check("only once", "POST", "/returns", 404, json={"book": 1}),
        ),
    ),
    Feature(
        name="auth",
        wants=_pattern(
            r"\bauth(entica\w+|ori[sz]\w+)?\b|\b(api|secret|access) key\b|\bbearer\b"
            r"|\bsign(ed|s)?[ -]in\b|\bcredentials?\b"
        ),
        story="When I run the shelf in the open, I want only holders of a key to change it, so that readers cannot.",
        criteria=(
            "With BOOKSHELF_KEY set, POST without it as a bearer token answers 401",
            "With the right key, POST works as before",
            "Reading needs no key, and without BOOKSHELF_KEY nothing changes",
        ),
        tasks=(
            Task(
                "require-key",
                "Ask for a key before changes",
                ("bookshelf/auth.py", "bookshelf/server.py", "tests/test_auth.py"),
            ),
        ),
        solution="auth",
        edits=(
            Edit(
                "bookshelf/server.py",
                "from bookshelf.routes import find",
                "from bookshelf.auth import allowed\nfrom bookshelf.routes import find",
            ),
            Edit(
                "bookshelf/server.py",
                "    url = urlsplit(target)\n",
                "    if not allowed(method, headers):\n"
                '        return 401, {"error": "a key is needed"}\n'
                "    url = urlsplit(target)\n",
            ),
        ),
        checks=(
            _check("no key, no change", "POST", "/books", 401, json={"title": "Dune"}),
            _check(
                "a wrong key neither",
                "POST",
                "/books",
                401,
                json={"title": "Dune"},
                headers={"Authorization": "Bearer x"},
            ),
            _check(
                "with the key it works",
                "POST",
                "/books",
                201,
                json={"title": "Dune"},
                headers={"Authorization": "Bearer for-this-check"},
            ),
            _check("reading is free", "GET", "/books", 200, body="Dune"),
        ),
        environment={"BOOKSHELF_KEY": "for-this-check"},
    ),
    Feature(
        name="rename-field",
        wants=_pattern(
            r"\brenam\w+\b|\bwriter\b[^.]{0,80}\bauthor\b|\bauthor\b[^.]{0,60}\b(instead of|not)\b[^.]{0,20}\bwriter\b"
        ),
        story="When I read a book's data, I want its author under that name, so that it matches our other systems.",
        criteria=(
            "Books have a field `author` in requests and answers",
            "The field `writer` is gone from the API, the tests and the README",
        ),
        tasks=(Task("rename-writer", "Call the field author everywhere", ("bookshelf/**", "tests/**", "README.md")),),
        command="git grep -lIw writer | while IFS= read -r file; do sed -i 's/\\bwriter\\b/author/g' \"$file\"; done",
        checks=(
            _check(
                "the new name is taken",
                "POST",
                "/books",
                201,
                json={"title": "Dune", "author": "H"},
                body='"author": "H"',
            ),
            _check("the old one is gone", "GET", "/books", 200, absent="writer"),
        ),
    ),
    Feature(
        name="ratings",
        wants=_pattern(r"\b(ratings?|rate|stars?|average)\b"),
        story="When I choose a book, I want to see what readers think of the shelf, so that I know what to expect.",
        criteria=(
            "POST /ratings gives a book 1 to 5 stars; anything else answers 400",
            "GET /ratings answers the average, rounded to one place, and the count",
            "Without any stars the average is null",
        ),
        tasks=_route("ratings", "Take stars and tell their average"),
        solution="ratings",
        first="ratings-first",
        checks=(
            _check("no stars, no average", "GET", "/ratings", 200, body='"average": null'),
            _BOOK,
            _check("stars are taken", "POST", "/ratings", 201, json={"book": 1, "stars": 4}),
            _check("six are refused", "POST", "/ratings", 400, json={"book": 1, "stars": 6}),
            _check("the average is told", "GET", "/ratings", 200, body='"average": 4.0'),
        ),
    ),
    Feature(
        name="health",
        wants=_pattern(r"\b(health|liveness|heartbeat|is alive|still alive)\b"),
        story="When I watch the service, I want it to say that it is alive, so that I notice when it is not.",
        criteria=("GET /health answers 200 with a status of ok", "It says how many books there are"),
        tasks=_route("health", "Say that the service is alive"),
        solution="health",
        checks=(_check("it is alive", "GET", "/health", 200, body='"status": "ok"'),),
    ),
    Feature(
        name="version",
        wants=_pattern(r"\b(tell|say|show|report|expose|which|what)\w*\b[^.]{0,60}\bversion\b|/version\b"),
        story="When I report a problem, I want to say which version is running, so that it can be found.",
        criteria=("GET /version answers 200 with the version", "The version has three parts"),
        tasks=_route("version", "Tell the running version"),
        solution="version",
        checks=(_check("the version is told", "GET", "/version", 200, body=r'"version": "\d+\.\d+\.\d+"'),),
    ),
    Feature(
        name="export",
        wants=_pattern(r"\b(csv|spreadsheets?|export\w*)\b"),
        story="When I work on the list in a spreadsheet, I want it as CSV, so that I need not copy it by hand.",
        criteria=(
            "GET /export.csv answers 200 with one row a book",
            "Cells that start like a formula are made harmless",
        ),
        tasks=_route("export", "Export the shelf as CSV"),
        solution="export",
        checks=(_BOOK, _check("the export has it", "GET", "/export.csv", 200, body="id,.*\r\n1,Dune")),
    ),
    Feature(
        name="statistics",
        wants=_pattern(r"\b(statistics?|stats|how many books)\b"),
        story="When I plan purchases, I want to know how many books there are by letter, so that I see the gaps.",
        criteria=("GET /statistics answers 200 with the number of books", "It counts them by first letter"),
        tasks=_route("statistics", "Count books by letter"),
        solution="statistics",
        checks=(_BOOK, _check("books are counted", "GET", "/statistics", 200, body=r'"D": \d')),
    ),
)
