"""The commands and their options. What they do is in the other modules, imported when a command runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from atelier_dagster.cli.errors import one_line_errors


class _Group(TyperGroup):
    """Ends every command the same way."""

    def invoke(self, ctx: Any) -> Any:
        with one_line_errors():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Group,
    help="Turns tickets into merged, verified changes, and keeps the proof in Dagster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes longer to import than everything else that --help needs
    context_settings={"help_option_names": ["-h", "--help"]},
)
ticket_app = typer.Typer(cls=_Group, help="Tickets of the local tracker.", no_args_is_help=True, rich_markup_mode=None)
audit_app = typer.Typer(
    cls=_Group, help="The chain of evidence of a ticket.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(ticket_app, name="ticket")
app.add_typer(audit_app, name="audit")


def _complete_ticket(incomplete: str) -> list[str]:
    from atelier_dagster.cli.completion import tickets

    return tickets(incomplete)


def _complete_repo(incomplete: str) -> list[str]:
    from atelier_dagster.cli.completion import repositories

    return repositories(incomplete)


def _complete_demo(incomplete: str) -> list[str]:
    from atelier_dagster.cli.completion import demo_tickets

    return demo_tickets(incomplete)


Ticket = Annotated[
    str,
    typer.Argument(
        metavar="TICKET", help="tracker/owner/repo#number, e.g. local/demo/shop#1", autocompletion=_complete_ticket
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")]
Sha = Annotated[str, typer.Option("--sha", help="The commit that you decide about; refused if it is not the head.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, in words.")]


def _version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        typer.echo(importlib.metadata.version("atelier-dagster"))
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Turns tickets into merged, verified changes, and keeps the proof in Dagster."""


@app.command()
def demo(  # noqa: PLR0917
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Give every approval that a person would give.")] = False,
    ticket: Annotated[
        list[str] | None,
        typer.Option(
            "--ticket", metavar="NAME", help="Which journey; `all` for every one.", autocompletion=_complete_demo
        ),
    ] = None,
    exit_: Annotated[bool, typer.Option("--exit", help="Stop at the end instead of keeping the UI running.")] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the UI; 0 takes a free one.")] = 0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Go on with the last demo's home instead of a fresh one.")
    ] = False,
    repo: Annotated[str, typer.Option("--repo", metavar="PATH|URL", help="Your repository, with your own model.")] = "",
    title: Annotated[str, typer.Option("--title", help="With --repo: the ticket's title.")] = "",
    body: Annotated[str, typer.Option("--body", help="With --repo: the ticket's text.")] = "",
    time_limit: Annotated[float, typer.Option("--time-limit", min=1.0, help="Seconds for the whole demo.")] = 1800.0,
    list_: Annotated[bool, typer.Option("--list", help="Only list the journeys.")] = False,
) -> None:
    """Walk whole journeys on this machine: a ticket becomes a merged, verified change before your eyes."""
    from atelier_dagster.cli import demo as command

    if list_:
        command.list_journeys()
        return
    if bool(repo) != bool(title) or (repo and ticket):
        raise typer.BadParameter("give --repo together with --title, and without --ticket")
    wish = command.Wish(
        yes=yes,
        tickets=tuple(ticket or ()),
        leave=exit_,
        port=port,
        keep=keep,
        repository=repo,
        title=title,
        body=body,
        time_limit=time_limit,
    )
    raise typer.Exit(command.run(wish))


@app.command()
def dev(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the UI; 0 takes a free one.")] = 3000,
) -> None:
    """Run the Dagster UI with its daemon on this checkout, until Ctrl-C."""
    from atelier_dagster.cli import dev as command

    command.run(port)


@app.command()
def init(
    source: Annotated[str, typer.Argument(metavar="REPO", help="Path or URL of a git repository.")],
    as_: Annotated[str, typer.Option("--as", metavar="local/OWNER/NAME", help="The name that it gets.")] = "",
    json_: Json = False,
) -> None:
    """Take a repository into the local tracker and forge."""
    from atelier_dagster.cli import local

    local.init(source, as_, as_json=json_)


@app.command()
def doctor(json_: Json = False) -> None:
    """Check everything that is configured; say how to mend what does not work."""
    from atelier_dagster.cli import doctor as command

    raise typer.Exit(command.run(as_json=json_))


@app.command()
def submit(ticket: Ticket, json_: Json = False) -> None:
    """Start a ticket, go on with one that stands still, or start the next cycle of one that has ended."""
    from atelier_dagster.cli import submit as command

    command.run(ticket, as_json=json_)


@app.command()
def status(
    ticket: Annotated[
        str, typer.Argument(metavar="[TICKET]", help="One ticket in detail.", autocompletion=_complete_ticket)
    ] = "",
    json_: Json = False,
) -> None:
    """Where tickets stand, what they wait for, and what they have cost so far."""
    from atelier_dagster.cli import status as command

    command.run(ticket, as_json=json_)


@app.command()
def approve(ticket: Ticket, sha: Sha = "", reason: Reason = "", json_: Json = False) -> None:
    """Approve a ticket's pull request (or its plan, where plans wait for a human)."""
    from atelier_dagster.cli import decide

    decide.run(ticket, "approve", sha=sha, reason=reason, as_json=json_)


@app.command()
def reject(ticket: Ticket, sha: Sha = "", reason: Reason = "", json_: Json = False) -> None:
    """Reject a ticket's pull request: its cycle ends."""
    from atelier_dagster.cli import decide

    decide.run(ticket, "reject", sha=sha, reason=reason, as_json=json_)


@app.command("request-changes")
def request_changes(
    ticket: Ticket,
    reason: Annotated[str, typer.Option("--reason", help="What is to change, in words.")],
    sha: Sha = "",
    json_: Json = False,
) -> None:
    """Ask for changes: a new round starts, with your words as feedback."""
    from atelier_dagster.cli import decide

    decide.run(ticket, "request_changes", sha=sha, reason=reason, as_json=json_)


@ticket_app.command("new")
def ticket_new(
    repo: Annotated[str, typer.Argument(metavar="REPO", help="local/owner/name", autocompletion=_complete_repo)],
    title: Annotated[str, typer.Option("--title", help="What is wanted, in a line.")],
    body: Annotated[str, typer.Option("--body", help="The ticket's text.")] = "",
    body_file: Annotated[str, typer.Option("--body-file", metavar="FILE|-", help="Read the text; - is stdin.")] = "",
    label: Annotated[list[str] | None, typer.Option("--label", help="A label besides the one that starts it.")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Leave the starting label out: nothing starts yet.")] = False,
    json_: Json = False,
) -> None:
    """Write a ticket. It starts by itself while `atelier dev` runs."""
    from atelier_dagster.cli import local

    if body and body_file:
        raise typer.BadParameter("give --body or --body-file, not both")
    text = body if not body_file else (sys.stdin.read() if body_file == "-" else Path(body_file).read_text("utf-8"))
    local.new_ticket(repo, title, text, labels=tuple(label or ()), hold=hold, as_json=json_)


@ticket_app.command("list")
def ticket_list(
    repo: Annotated[
        str, typer.Argument(metavar="[REPO]", help="Only of this repository.", autocompletion=_complete_repo)
    ] = "",
    all_: Annotated[bool, typer.Option("--all", help="Closed ones too.")] = False,
    json_: Json = False,
) -> None:
    """List the local tracker's tickets."""
    from atelier_dagster.cli import local

    local.list_tickets(repo, closed=all_, as_json=json_)


@audit_app.command("show")
def audit_show(ticket: Ticket, json_: Json = False) -> None:
    """Every artifact of a ticket, in order, with what it was made from."""
    from atelier_dagster.cli import audit

    audit.show(ticket, as_json=json_)


@audit_app.command("verify")
def audit_verify(ticket: Ticket, json_: Json = False) -> None:
    """Recompute every hash; exit code 1 if anything is not as it was recorded."""
    from atelier_dagster.cli import audit

    raise typer.Exit(audit.verify(ticket, as_json=json_))


@audit_app.command("export")
def audit_export(
    ticket: Ticket,
    to: Annotated[Path | None, typer.Option("--to", help="Directory to make; named for the ticket by default.")] = None,
) -> None:
    """Write one HTML page, and beside it every object that it names."""
    from atelier_dagster.cli import audit

    audit.export(ticket, to)
