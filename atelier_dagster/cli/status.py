"""`atelier status`: where tickets stand, as a table, in detail, or as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape

from atelier_dagster.cli import output, workbench
from atelier_dagster.cli.home import dagster_directory, webserver_url
from atelier_dagster.cli.standing import TicketStanding, known_tickets, open_instance, standing
from atelier_dagster.factory.errors import AtelierError, NotFound
from atelier_dagster.settings import Settings, load_settings


def run(ticket: str, *, as_json: bool) -> None:
    """The command."""
    settings = load_settings()
    partition = workbench.parse_ticket(ticket).partition if ticket else ""
    if not (dagster_directory(settings.home) / "dagster.yaml").exists() and not partition:
        found: list[TicketStanding] = []
        problems: dict[str, str] = {}
    else:
        found, problems = asyncio.run(_standings(settings, partition))
    if as_json:
        shown = [each.model_dump(mode="json") for each in found]
        output.print_json({"tickets": shown, "unreadable": problems} if problems else {"tickets": shown})
        return
    if partition:
        output.stdout().print(detail(found[0]))
    elif found:
        output.stdout().print(overview(found))
    else:
        output.say("no ticket has been taken in; write one: atelier ticket new local/owner/name --title '...'")
    for name, problem in problems.items():
        output.say(f"{name}: {problem}")


async def _standings(settings: Settings, partition: str) -> tuple[list[TicketStanding], dict[str, str]]:
    """Standings, and why those of other tickets cannot be told: one damaged ticket hides no other."""
    store, url = workbench.artifact_store(settings), webserver_url(settings)
    found: list[TicketStanding] = []
    problems: dict[str, str] = {}
    with open_instance(settings) as instance:
        known = known_tickets(instance)
        if partition and partition not in known:
            raise NotFound("this ticket has not been taken in", fix="start it: atelier submit TICKET")
        for each in [partition] if partition else known:
            try:
                found.append(await standing(instance, store, each, settings.policy, url))
            except AtelierError as error:
                if partition:
                    raise
                problems[each] = str(error)
    return found, problems


def overview(standings: Sequence[TicketStanding]) -> RenderableType:
    """One line a ticket."""
    rows = [
        (
            escape(s.ticket),
            output.styled(s.ending or s.state),
            escape(s.stage),
            f"{s.cycle}.{s.round}.{s.attempt}",
            escape(s.waits_for or s.next_job or (s.active_runs[0].job if s.active_runs else "")),
            f"#{s.pull_request.number}" if s.pull_request else "",
            spent(s),
            escape(s.title),
        )
        for s in standings
    ]
    columns = ("ticket", "state", "stage", "attempt", "waits for / runs", "pull request", "tokens, cost", "title")
    return output.table(columns, rows)


def detail(s: TicketStanding) -> RenderableType:
    """Everything about one ticket."""
    facts = [
        ("ticket", f"{escape(s.ticket)}  {escape(s.title)}"),
        ("state", output.styled(s.ending or s.state)),
        ("why", escape(s.reason)),
        ("waits for", escape(s.waits_for)),
        ("next", escape(f"{s.next_job}: {', '.join(s.next_assets)}" if s.next_job else "")),
        ("stage", escape(s.stage)),
        ("attempt", f"cycle {s.cycle}, round {s.round}, attempt {s.attempt}"),
        ("refused", f"plans {s.refusals.architecture}, tests {s.refusals.correction}, reviews {s.refusals.review}"),
        ("runs", f"{s.ended_runs} ended, {s.failed_runs} of them failed"),
        *(("running", escape(f"{run.job} ({run.status}) {run.url}")) for run in s.active_runs),
        ("pull request", _pull_request(s)),
        ("spent", spent(s)),
        ("in the UI", escape(s.url)),
    ]
    parts: list[RenderableType] = [output.table(("", ""), [fact for fact in facts if fact[1]])]
    if s.verdicts:
        parts.append(output.table(("asset", "verdict"), [(a, output.styled(v)) for a, v in s.verdicts.items()]))
    if s.concerns:
        parts += ["", "[bold]concerns[/]", *(f"- {escape(text)}" for text in s.concerns)]
    return Group(*parts)


def _pull_request(s: TicketStanding) -> str:
    pr = s.pull_request
    return escape(f"#{pr.number} {pr.title}  {pr.head[:12]}, {pr.changed_files} files  {pr.url}") if pr else ""


def spent(s: TicketStanding) -> str:
    """Tokens and cost so far."""
    cost = "" if s.cost_usd is None else f", ${s.cost_usd:.4f}"
    return f"{s.tokens_in + s.tokens_out}{cost}" if s.model_calls else ""
