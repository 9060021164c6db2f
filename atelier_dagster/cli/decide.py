"""`atelier approve`, `reject`, `request-changes`: a decision on the local forge, and the run that judges it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from atelier_dagster.artifacts import ArtifactStore
from atelier_dagster.cli import output, workbench
from atelier_dagster.cli.home import webserver_url
from atelier_dagster.factory.approval import Action, DecisionSource
from atelier_dagster.factory.change import PullRequest
from atelier_dagster.factory.errors import AtelierError, InvalidInput, NotFound, Refused, Unavailable
from atelier_dagster.factory.lineage import Artifact
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.orchestration.client import DagsterClient
from atelier_dagster.orchestration.orders import release_order
from atelier_dagster.settings import Settings, load_settings

_ASSETS = ("ticket", "plan", "pull_request")
_SHORTEST_SHA = 7


@dataclass(frozen=True)
class Latest:
    """The last artifact of a ticket's asset."""

    sha256: str
    timestamp: float


@dataclass(frozen=True)
class Decided:
    """What a decision led to. `run_id` "": the approval sensor takes it up when Dagster runs."""

    ticket: str
    subject: str
    """`pull_request` or `plan`."""
    action: str
    id: str
    head: str
    run_id: str = ""
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return dict(vars(self))


def run(ticket: str, action: str, *, sha: str, reason: str, as_json: bool) -> None:
    """The command."""
    settings = load_settings()
    key = workbench.parse_ticket(ticket)
    decided = asyncio.run(decide(settings, key, Action(action), sha=sha, reason=reason))
    if as_json:
        output.print_json(decided.as_json())
        return
    word = {"approve": "approved", "reject": "rejected", "request_changes": "changes requested"}[decided.action]
    what = "plan" if decided.subject == "plan" else "head"
    output.stdout().print(f"{decided.ticket}: {word}, {what} {decided.head[:12]}")
    output.say(decided.note or f"run {decided.run_id} judges it: {webserver_url(settings)}/runs/{decided.run_id}")


async def decide(settings: Settings, key: TicketKey, action: Action, *, sha: str = "", reason: str = "") -> Decided:
    """Record a decision of the operating-system user, then start the run that judges it if Dagster runs.

    It always names a commit: the pull request's head now. Raises `NotFound` (nothing to decide about), `Refused`
    (`sha` is not the head, or the pull request is closed), `InvalidInput` (not on the local forge).
    """
    workbench.require_local(key)
    if action is Action.REQUEST_CHANGES and not reason.strip():
        raise InvalidInput("say what is to change", fix="give --reason")
    with DagsterClient(webserver_url(settings)) as client:
        is_up = client.is_up() and client.load_error() == ""
        latest = await asyncio.to_thread(_latest, settings, client if is_up else None, key)
        store = workbench.artifact_store(settings)
        pull_request = await _present(store, key, "pull_request", latest)
        plan = latest.get("plan")
        if settings.plan_review == "human" and plan and (pull_request is None or plan.timestamp > pull_request[1]):
            return await _decide_plan(settings, key, action, plan.sha256, sha)
        if pull_request is None:
            raise NotFound(
                f"{key} has no pull request to decide about", fix=f"see where it stands: atelier status '{key}'"
            )
        artifact = pull_request[0]
        decided = await _decide_pull_request(settings, key, action, artifact.value, sha, reason)
        return await asyncio.to_thread(_wake, client, key, decided, artifact.sha256) if is_up else decided


async def _present(
    store: ArtifactStore, key: TicketKey, asset: str, latest: dict[str, Latest]
) -> tuple[Artifact[Any], float] | None:
    """The last artifact of an asset with its time, if it belongs to the ticket's present cycle."""
    if asset not in latest or "ticket" not in latest:
        return None
    found = await store.get(key.partition, asset, latest[asset].sha256)
    ticket = await store.get(key.partition, "ticket", latest["ticket"].sha256)
    return (found, latest[asset].timestamp) if found.cycle == ticket.cycle else None


def _latest(settings: Settings, client: DagsterClient | None, key: TicketKey) -> dict[str, Latest]:
    """The last artifacts that a decision may be about, from the webserver if it runs."""
    if client is None:
        return _stored(settings, key)
    made = client.materializations(_ASSETS, key.partition, limit=1)
    return {each.asset: Latest(each.sha256, each.timestamp) for each in made if each.sha256}


def _stored(settings: Settings, key: TicketKey) -> dict[str, Latest]:
    """The same from Dagster's storage, which takes its import: no webserver needs to run."""
    import dagster as dg

    from atelier_dagster.cli.standing import open_instance
    from atelier_dagster.orchestration import tags

    found: dict[str, Latest] = {}
    with open_instance(settings) as instance:
        for asset in _ASSETS:
            filters = dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=[key.partition])
            for record in instance.fetch_materializations(filters, limit=1).records:
                made = record.asset_materialization
                version = (made.tags or {}).get(tags.DATA_VERSION, "") if made else ""
                if version:
                    found[asset] = Latest(version, record.timestamp)
    return found


async def _decide_pull_request(
    settings: Settings, key: TicketKey, action: Action, value: PullRequest, sha: str, reason: str
) -> Decided:
    forge = workbench.local_forge(settings)
    state = await forge.get_pull_request(key.repo, value.number)
    if not state.is_open:
        what = "merged" if state.merged else "closed"
        raise Refused(f"pull request {value.number} is {what}: there is nothing to decide", fix="see `atelier status`")
    _check_sha(sha, state.head, "the pull request's head")
    decision_id = await forge.record_decision(key.repo, value.number, action, head=state.head, reason=reason)
    note = "recorded; it is judged when Dagster runs: atelier dev"
    return Decided(str(key), "pull_request", action.value, decision_id, state.head, note=note)


async def _decide_plan(settings: Settings, key: TicketKey, action: Action, plan: str, sha: str) -> Decided:
    """A plan is approved by a comment on the ticket that names its hash."""
    if action is not Action.APPROVE:
        raise Refused(
            "a plan can only be approved here",
            fix="edit the ticket and run `atelier submit`, or take its label away to stop it",
        )
    _check_sha(sha, plan, "the plan that waits")
    body = f"/atelier approve {plan}"
    comment = await workbench.local_tracker(settings).add_comment(key, body)
    note = "recorded on the ticket; the approval sensor takes it up within seconds while `atelier dev` runs"
    return Decided(str(key), "plan", action.value, comment.id, plan, note=note)


def _check_sha(given: str, actual: str, what: str) -> None:
    if not given:
        return
    if len(given) < _SHORTEST_SHA or not actual.startswith(given.lower()):
        raise Refused(f"{given[:64]} is not {what}: that is {actual}", fix="look at it again, then decide on that one")


def _wake(client: DagsterClient, key: TicketKey, decided: Decided, pull_request_sha: str) -> Decided:
    """Start the judging run now. The decision is recorded already, so failing to start it loses nothing."""
    order = release_order(key.partition, DecisionSource.CLI.value, decided.id, pull_request_sha)
    try:
        running = client.active_runs(key.partition)
        if running:
            note = f"recorded; run {running[0].run_id} of {running[0].job} is still going, the sensor follows after it"
            return Decided(**{**vars(decided), "note": note})
        launched = client.launch(order)
    except (Refused, Unavailable) as error:
        return Decided(**{**vars(decided), "note": f"recorded; the approval sensor will take it up ({_short(error)})"})
    return Decided(**{**vars(decided), "run_id": launched.run_id, "note": ""})


def _short(error: AtelierError) -> str:
    return error.message[:200]
