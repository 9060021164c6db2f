"""Where a ticket stands, out of Dagster's storage and the artifact store. Not here: how it is shown."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import dagster as dg
from pydantic import BaseModel

from atelier_dagster.artifacts import ArtifactStore
from atelier_dagster.cli.home import dagster_directory
from atelier_dagster.factory.approval import Approval
from atelier_dagster.factory.budgets import Policy, architecture_refusals, correction_refusals, review_refusals
from atelier_dagster.factory.change import Merge, PullRequest, QaReport, ReviewGate, TestReport
from atelier_dagster.factory.errors import InvalidInput, NotFound
from atelier_dagster.factory.lineage import ASSETS, Entry, History
from atelier_dagster.factory.plan import ArchitectureReview
from atelier_dagster.factory.routing import DoneStep, RunStep, WaitStep, next_step
from atelier_dagster.factory.ticket import Ticket, TicketKey
from atelier_dagster.factory.verdict import Review
from atelier_dagster.orchestration.history import HistoryReader, active_runs
from atelier_dagster.orchestration.partitions import TICKETS
from atelier_dagster.orchestration.spend import Spend, spent_so_far
from atelier_dagster.settings import Settings

State = Literal["not_started", "running", "waiting", "due", "ended"]


class PullRequestStanding(BaseModel):
    """The pull request of the present cycle."""

    number: int
    title: str
    url: str
    head: str
    changed_files: int


class RunStanding(BaseModel):
    """A run that has not ended."""

    run_id: str
    job: str
    status: str
    url: str


class Refusals(BaseModel):
    """Distinct refused artifacts of the present cycle and round: what has been used of each budget."""

    architecture: int = 0
    correction: int = 0
    review: int = 0


class TicketStanding(BaseModel):
    """One ticket. The names of these fields are the schema of `atelier status --json`."""

    ticket: str
    partition: str
    title: str = ""
    cycle: int = 0
    round: int = 0
    attempt: int = 0
    state: State
    stage: str = ""
    """The furthest asset that is current."""
    waits_for: str = ""
    """What a human must do, as a stable word (`approval`, `plan_review`, `failures`, ...)."""
    reason: str = ""
    next_job: str = ""
    next_assets: tuple[str, ...] = ()
    ending: str = ""
    verdicts: dict[str, str] = {}
    concerns: tuple[str, ...] = ()
    refusals: Refusals = Refusals()
    pull_request: PullRequestStanding | None = None
    active_runs: tuple[RunStanding, ...] = ()
    ended_runs: int = 0
    failed_runs: int = 0
    model_calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    """None: no model call told its cost."""
    url: str = ""
    """The ticket's page in Dagster's UI."""


@contextmanager
def open_instance(settings: Settings) -> Generator[dg.DagsterInstance]:
    """Dagster's storage of this home. Raises `NotFound` when nothing ever ran here."""
    directory = dagster_directory(settings.home)
    if not (directory / "dagster.yaml").exists():
        raise NotFound(f"nothing has run in {settings.home} yet", fix="run `atelier dev`, or set ATELIER_HOME")
    try:
        with dg.DagsterInstance.from_config(str(directory)) as instance:
            yield instance
    except dg.DagsterInvalidConfigError as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"{directory}/dagster.yaml does not work: {reason}", fix="run `atelier dev` again") from None


def known_tickets(instance: dg.DagsterInstance) -> Sequence[str]:
    """Partitions of every ticket that was ever taken in."""
    return instance.get_dynamic_partitions(TICKETS)


async def read_history(instance: dg.DagsterInstance, store: ArtifactStore, partition: str) -> History:
    """Everything that routing wants to know of a ticket."""
    return await HistoryReader(instance, store, partition).read(with_runs=True)


async def standing(
    instance: dg.DagsterInstance, store: ArtifactStore, partition: str, policy: Policy, url: str
) -> TicketStanding:
    """Where one ticket stands. `url` is the webserver's, for links."""
    history = await read_history(instance, store, partition)
    running = active_runs(instance, partition)
    return describe(history, running, spent_so_far(instance, partition), policy, url)


def describe(
    history: History, running: Sequence[dg.DagsterRun], spend: Spend, policy: Policy, url: str
) -> TicketStanding:
    """The standing that follows from what is recorded. Pure."""
    step = next_step(history, policy)
    lead = _lead(history)
    ticket = history.value("ticket", Ticket)
    return TicketStanding(
        ticket=str(TicketKey.from_partition(history.ticket)),
        partition=history.ticket,
        title=ticket.title if ticket else "",
        cycle=history.cycle,
        round=lead.artifact.round if lead else 0,
        attempt=lead.artifact.attempt if lead else 0,
        stage=lead.asset if lead else "",
        verdicts=verdicts(history),
        concerns=concerns(history),
        refusals=_refusals(history, lead.artifact.round if lead else 1),
        pull_request=_pull_request(history),
        active_runs=tuple(_run(run, url) for run in running),
        ended_runs=len(history.runs),
        failed_runs=sum(run.status == "failure" for run in history.runs),
        model_calls=spend.calls,
        tokens_in=spend.tokens_in,
        tokens_out=spend.tokens_out,
        cost_usd=spend.cost_usd,
        url=partition_url(url, lead.asset if lead else "ticket", history.ticket),
        **_movement(step, is_running=bool(running)),
    )


def _movement(step: RunStep | WaitStep | DoneStep, *, is_running: bool) -> dict[str, Any]:
    """Whether it moves, and what it waits for when it does not."""
    if is_running:
        return {"state": "running"}
    if isinstance(step, DoneStep):
        return {"state": "ended", "ending": step.ending.value, "reason": step.reason}
    if isinstance(step, WaitStep):
        state = "not_started" if step.kind.value == "not_started" else "waiting"
        return {"state": state, "waits_for": step.kind.value, "reason": step.reason}
    return {"state": "due", "reason": step.reason, "next_job": step.job, "next_assets": step.assets}


def _lead(history: History) -> Entry | None:
    """The current artifact that is furthest on."""
    reached = history.current_assets()
    return history.current(reached[-1]) if reached else None


def verdicts(history: History) -> dict[str, str]:
    """What was decided so far, by what is current: asset -> word."""
    words: dict[str, str] = {}
    for asset in ASSETS:
        entry = history.current(asset)
        word = verdict_word(entry.artifact.value) if entry else ""
        if word:
            words[asset] = word
    return words


def verdict_word(value: BaseModel) -> str:
    """The verdict in an artifact's value, in a word; "" when it decides nothing."""
    match value:
        case ArchitectureReview():
            return value.verdict.verdict.value
        case Review():
            return value.verdict.verdict.value if value.triggered else "not triggered"
        case TestReport():
            return value.status.value
        case ReviewGate():
            return "overridden" if value.overridden else "open"
        case Approval():
            return value.decision.action.value if value.counts else "does not count"
        case Merge():
            return "merged" if value.merged else "refused"
        case QaReport():
            return value.verdict.verdict.value
        case _:
            return ""


def concerns(history: History) -> tuple[str, ...]:
    """What a human should know: of the pull request, else of the gate before it."""
    pull_request = history.value("pull_request", PullRequest)
    if pull_request:
        return pull_request.concerns
    gate = history.value("review_gate", ReviewGate)
    return gate.concerns if gate else ()


def _refusals(history: History, round_: int) -> Refusals:
    return Refusals(
        architecture=architecture_refusals(history),
        correction=correction_refusals(history, round_),
        review=review_refusals(history, round_),
    )


def _pull_request(history: History) -> PullRequestStanding | None:
    value = history.value("pull_request", PullRequest)
    if value is None:
        return None
    return PullRequestStanding(
        number=value.number, title=value.title, url=value.url, head=value.head, changed_files=value.changed_files
    )


def _run(run: dg.DagsterRun, url: str) -> RunStanding:
    return RunStanding(
        run_id=run.run_id, job=run.job_name, status=run.status.value.lower(), url=run_url(url, run.run_id)
    )


def run_url(base: str, run_id: str) -> str:
    """A run's page in the UI."""
    return f"{base}/runs/{run_id}"


def partition_url(base: str, asset: str, partition: str) -> str:
    """The page of one asset of one ticket in the UI."""
    from urllib.parse import quote

    return f"{base}/assets/{quote(asset)}?view=partitions&partition={quote(partition, safe='')}"
