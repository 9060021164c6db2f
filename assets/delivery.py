"""Delivery: the pull request, a human's decision about it, the merge, what is remembered, and how the cycle ended."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from assets._site import open_site
from atelier_dagster.delivery import remove_workshops
from atelier_dagster.delivery.tell import tell, tell_reviewers
from atelier_dagster.factory.approval import Action, Approval, equivalent_heads, judge
from atelier_dagster.factory.change import (
    DiffStat,
    Ending,
    Integration,
    Knowledge,
    Merge,
    Outcome,
    PullRequest,
    RefusalKind,
    ReviewGate,
    TestReport,
)
from atelier_dagster.factory.errors import AtelierError, Refused
from atelier_dagster.factory.lineage import Artifact, History
from atelier_dagster.factory.messages import (
    cycle_ended,
    decision_refused,
    merge_refused,
    pull_request_body,
    pull_request_opened,
    resolution_summary,
)
from atelier_dagster.factory.ticket import Analysis, Ticket, TicketKey, workshop_name
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.decisions import fetch_decision
from atelier_dagster.orchestration.spend import spent_so_far
from atelier_dagster.orchestration.step import Made, journey_asset, read_history, ticket_key
from atelier_dagster.ports import Tracker
from resources.artifacts import ArtifactsResource
from resources.forge import ForgeResource
from resources.knowledge import KnowledgeResource
from resources.policy import PolicyResource
from resources.repositories import RepositoriesResource
from resources.tracker import TrackerResource
from resources.workshops import WorkshopsResource

_TITLE_CHARACTERS = 200


@journey_asset(kinds={"git"})
async def pull_request(
    context: dg.AssetExecutionContext,
    ticket: Artifact[Ticket],
    analysis: Artifact[Analysis],
    integration: Artifact[Integration],
    diff: Artifact[DiffStat],
    test_report: Artifact[TestReport],
    review_gate: Artifact[ReviewGate],
    forge: ForgeResource,
    tracker: TrackerResource,
    repositories: RepositoriesResource,
    workshops: WorkshopsResource,
    artifacts: ArtifactsResource,
) -> Made:
    """The pull request, opened or updated, never force-pushed. It shows every concern, override and conflict, and
    what was not reviewed. Its workshops sleep while a human thinks."""
    key, value = ticket_key(context), integration.value
    site = await open_site(key, forge, repositories, workshops, branches=[value.branch])
    await site.repository.push(site.remote, f"refs/heads/{value.branch}", value.head, site.tips.get(value.branch))
    body = pull_request_body(await read_history(context, artifacts.store()))
    # what was spent so far is shown, but is no content: it must not make an approval stale
    spend = spent_so_far(context.instance, context.partition_key).in_words()
    title = " ".join(ticket.value.title.split())[:_TITLE_CHARACTERS]
    base_branch = ticket.value.base_branch
    state = await site.forge.open_pull_request(
        key.repo, head=value.branch, base=base_branch, title=title, body=f"{body}\n\nSpent so far: {spend}.\n"
    )
    if state.changed_files < 1:
        raise Refused(
            f"pull request {state.number} changes no file",
            fix="look at the branch on the forge",
            code="EMPTY_PULL_REQUEST",
        )
    made = PullRequest(
        number=state.number,
        url=state.url,
        title=title,
        body=body,
        head=value.head,
        base=value.base,
        branch=value.branch,
        base_branch=base_branch,
        changed_files=state.changed_files,
        diff_sha256=diff.value.text.sha256,
        concerns=review_gate.value.concerns,
    )
    await tell(tracker.tracker(), key, "pull-request", pull_request_opened(made))
    for workshop in await site.workshops.list(ticket=key.partition):
        await site.workshops.suspend(workshop.name)
    return Made(made)


class DecisionConfig(dg.Config):
    """Where the decision was made. There are no defaults: a launch without a decision must not make one up."""

    source: str
    id: str


@journey_asset(kinds={"human"})
async def approval(
    context: dg.AssetExecutionContext,
    config: DecisionConfig,
    pull_request: Artifact[PullRequest],
    forge: ForgeResource,
    tracker: TrackerResource,
    repositories: RepositoriesResource,
    workshops: WorkshopsResource,
    artifacts: ArtifactsResource,
    policy: PolicyResource,
) -> Made:
    """A human's decision as its source has it, and whether it counts: who made it, and on which head."""
    key, opened = ticket_key(context), pull_request.value
    site = await open_site(key, forge, repositories, workshops, branches=[opened.base_branch, opened.branch])
    decision = await fetch_decision(site.forge, key.repo, opened.number, config.source, config.id)
    base = site.tips.get(opened.base_branch, "")
    judged = judge(
        decision,
        opened,
        approvers=frozenset(policy.approvers),
        bot=policy.bot,
        equivalent_heads=equivalent_heads(await read_history(context, artifacts.store())),
        base=base,
        base_moved=bool(base) and not await site.repository.contains(opened.head, base),
        head_now=site.tips.get(opened.branch, ""),
        allow_ui=policy.allow_ui_approval,
    )
    if not judged.counts:
        await tell(tracker.tracker(), key, "decision", decision_refused(judged))
    return Made(judged)


@journey_asset(kinds={"git"}, gate=True)
async def merge(
    context: dg.AssetExecutionContext,
    ticket: Artifact[Ticket],
    pull_request: Artifact[PullRequest],
    approval: Artifact[Approval],
    forge: ForgeResource,
    tracker: TrackerResource,
) -> Made | None:
    """Gate: only an approval that counts, of exactly this head, merges. A refusal of the forge is recorded and told."""
    judged, opened = approval.value, pull_request.value
    if not judged.counts or judged.decision.action is not Action.APPROVE or judged.base_moved or judged.head_moved:
        return None
    key = ticket_key(context)
    message = (
        f"Merge pull request #{opened.number}: {opened.title}\n\nTicket: {key}\nApproved-by: {judged.decision.actor}"
    )
    answer = await forge.forge().merge(key.repo, opened.number, head=opened.head, message=message)
    if answer.merged:
        return Made(Merge(merged=True, commit=answer.commit, head=opened.head), final=True)
    await tell(tracker.tracker(), key, "merge", merge_refused(answer.reason))
    refusal = RefusalKind(answer.refusal or RefusalKind.FORGE.value)
    return Made(Merge(merged=False, head=opened.head, refusal=refusal, reason=answer.reason))


@journey_asset(kinds={"lancedb"}, gate=True, reads={"merged": "merge"}, priority=-1)  # people wait for QA
async def knowledge(
    context: dg.AssetExecutionContext,
    ticket: Artifact[Ticket],
    analysis: Artifact[Analysis],
    diff: Artifact[DiffStat],
    merged: Artifact[Merge],
    knowledge: KnowledgeResource,
) -> Made | None:
    """What was learned from this ticket. A failure is noted, and never fails the run."""
    if not merged.value.merged:
        return None
    index = knowledge.index()
    if index is None:
        return Made(Knowledge(indexed=False, problem="knowledge is off"))
    summary = resolution_summary(ticket.value, analysis.value, diff.value)
    try:
        await index.add(ticket_key(context), ticket.cycle, ticket.value.title, summary)
    except AtelierError as error:
        return Made(Knowledge(indexed=False, summary=summary, problem=str(error)))
    return Made(Knowledge(indexed=True, summary=summary))


@journey_asset(kinds={"python"}, watches=("approval",))
async def outcome(
    context: dg.AssetExecutionContext,
    ticket: Artifact[Ticket],
    tracker: TrackerResource,
    forge: ForgeResource,
    workshops: WorkshopsResource,
    artifacts: ArtifactsResource,
) -> Made:
    """How the cycle ended: the ticket told and closed, its workshops removed, the final spend read again."""
    key, history = ticket_key(context), await read_history(context, artifacts.store())
    ending, reason = ending_of(history, context.run.tags)
    kept = workshop_name(key, ticket.cycle, "qa")  # for a look at what QA saw; housekeeping removes it after its time
    cleanup = await remove_workshops(workshops.workshops(), key.partition, keep=(kept,))
    for problem in cleanup.problems:
        context.log.warning(problem)
    opened = history.value("pull_request", PullRequest)
    spend = spent_so_far(context.instance, context.partition_key)
    text = cycle_ended(ending, reason, opened, spend.in_words())
    await _say_goodbye(tracker.tracker(), key, ticket.cycle, ending, text)
    if opened is not None and ending is Ending.REJECTED:
        await tell_reviewers(forge.forge(), key.repo, opened.number, f"outcome-{ticket.cycle}", text)
    current = {asset: history.current(asset) for asset in history.current_assets()}
    value = Outcome(
        ending=ending,
        reason=reason,
        workshops_removed=tuple(cleanup.removed),
        evidence={asset: entry.sha256 for asset, entry in current.items() if entry and asset != "outcome"},
    )
    return Made(value, final=True, metadata=spend.as_metadata())


def ending_of(history: History, run_tags: Mapping[str, str]) -> tuple[Ending, str]:
    """A merge says how it ended; then a decision that counts; then what the run was told."""
    merged, judged = history.value("merge", Merge), history.value("approval", Approval)
    if merged is not None and merged.merged:
        return Ending.MERGED, f"merged as {merged.commit}"
    told = run_tags.get(tags.REASON, "")
    if run_tags.get(tags.ENDING):
        return Ending.CANCELLED, told
    if judged is not None and judged.counts and judged.decision.action is Action.REJECT:
        by = f"rejected by {judged.decision.actor}"
        return Ending.REJECTED, f"{by}: {judged.decision.reason}" if judged.decision.reason else by
    return Ending.CANCELLED, told or "ended by an operator"


async def _say_goodbye(tracker: Tracker, key: TicketKey, cycle: int, ending: Ending, text: str) -> None:
    """A ticket that lost its label stays open: its people only took it away from us."""
    await tell(tracker, key, f"outcome-{cycle}", text)
    if ending is not Ending.CANCELLED:
        await tracker.close_issue(key)
