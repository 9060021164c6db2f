"""Commands on the local tracker and forge: repositories taken in, tickets written and listed."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from rich.markup import escape

from atelier_dagster.cli import output, workbench
from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.factory.ticket import RepoRef
from atelier_dagster.forges import TakenIn
from atelier_dagster.ports import Issue
from atelier_dagster.settings import Settings, load_settings

_DEFAULT_OWNER = "me"


def init(source: str, name: str, *, as_json: bool) -> None:
    """`atelier init`."""
    settings = load_settings()
    repo = workbench.parse_repo(name) if name else name_for(source)
    taken = asyncio.run(workbench.local_forge(settings).init(repo, source))
    if as_json:
        output.print_json(_taken_json(taken))
        return
    console = output.stdout()
    done = "taken in" if taken.created else "is there already, and was left as it is"
    console.print(f"{escape(str(taken.repo))} {done}: {escape(str(taken.path))}, branch {escape(taken.default_branch)}")
    for note in taken.notes:
        output.say(f"note: {note}")
    console.print(f"Next: atelier ticket new {escape(str(taken.repo))} --title '...'")


def name_for(source: str) -> RepoRef:
    """The name that a repository gets when none is given: the last two parts of a URL, or a directory's name.

    Raises `InvalidInput` when it has no usable name.
    """
    path = re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/]*/|^[^/]+@[^/:]+:", "", source.rstrip("/"))
    is_url = path != source.rstrip("/")
    parts = [part for part in path.removesuffix("/.git").removesuffix(".git").split("/") if part not in ("", ".", "..")]
    if not parts:
        from pathlib import Path

        parts = [Path(source).resolve().name]
    owner = parts[-2] if is_url and len(parts) > 1 else _DEFAULT_OWNER
    words = [re.sub(r"[^A-Za-z0-9_.-]+", "-", part).strip("-.") for part in (owner, parts[-1])]
    try:
        return RepoRef.parse("/".join([workbench.LOCAL, *words]))
    except InvalidInput as error:
        raise InvalidInput(f"{source!r} gives no name: {error.message}", fix="name it: --as local/owner/name") from None


def new_ticket(repo: str, title: str, body: str, *, labels: tuple[str, ...], hold: bool, as_json: bool) -> None:
    """`atelier ticket new`."""
    settings = load_settings()
    wanted = labels if hold else tuple(dict.fromkeys((settings.label, *labels)))
    tracker = workbench.local_tracker(settings)
    issue = asyncio.run(tracker.create_issue(workbench.parse_repo(repo), title=title, body=body, labels=wanted))
    if as_json:
        output.print_json(issue_json(issue))
        return
    console = output.stdout()
    console.print(escape(str(issue.key)))
    output.say(f"{issue.url}")
    if not hold:
        output.say(f"It starts by itself while `atelier dev` runs, or now: atelier submit '{issue.key}'")


def list_tickets(repo: str, *, closed: bool, as_json: bool) -> None:
    """`atelier ticket list`."""
    settings = load_settings()
    issues = asyncio.run(_issues(settings, repo))
    shown = [issue for issue in issues if closed or issue.is_open]
    if as_json:
        output.print_json({"tickets": [issue_json(issue) for issue in shown]})
        return
    rows = [
        (escape(str(i.key)), "open" if i.is_open else "closed", escape(", ".join(i.labels)), escape(i.title))
        for i in shown
    ]
    if not rows:
        output.say("no tickets; write one: atelier ticket new local/owner/name --title '...'")
        return
    output.stdout().print(output.table(("ticket", "state", "labels", "title"), rows))


async def _issues(settings: Settings, repo: str) -> list[Issue]:
    tracker = workbench.local_tracker(settings)
    repositories = [workbench.parse_repo(repo)] if repo else await tracker.repositories()
    found: list[Issue] = []
    for each in repositories:
        issues, _ = await tracker.issues_changed_since(each, "")
        found += issues
    return found


def issue_json(issue: Issue) -> dict[str, Any]:
    """A ticket as `--json` shows it."""
    return {
        "ticket": str(issue.key),
        "title": issue.title,
        "author": issue.author,
        "labels": list(issue.labels),
        "open": issue.is_open,
        "url": issue.url,
        "updated_at": issue.updated_at.isoformat(),
    }


def _taken_json(taken: TakenIn) -> dict[str, Any]:
    return {
        "repository": str(taken.repo),
        "path": str(taken.path),
        "default_branch": taken.default_branch,
        "branches": list(taken.branches),
        "created": taken.created,
        "notes": list(taken.notes),
    }
