"""Planning: what the ticket asks for, how the work is split, and whether the split is sound."""

from __future__ import annotations

import dagster as dg

from assets._desk import consultant, usage_metadata
from atelier_dagster.delivery.tell import tell
from atelier_dagster.factory.errors import AtelierError, InvalidInput
from atelier_dagster.factory.lineage import Artifact
from atelier_dagster.factory.messages import plan_waits
from atelier_dagster.factory.plan import (
    ApprovedPlan,
    ArchitectureReview,
    GreenfieldSpec,
    Plan,
    PlanDocument,
    check_plan,
    parse_answered,
    parse_greenfield,
    parse_plan,
    reduce_to_one,
)
from atelier_dagster.factory.prompts import render
from atelier_dagster.factory.routing import architecture_gate, planning_start
from atelier_dagster.factory.ticket import Analysis, Resolution, Ticket, parse_analysis
from atelier_dagster.factory.verdict import Decision, ReviewVerdict, parse_review
from atelier_dagster.orchestration.decisions import plan_approver
from atelier_dagster.orchestration.step import Made, journey_asset, read_history, ticket_key
from resources.artifacts import ArtifactsResource
from resources.knowledge import KnowledgeResource
from resources.llm import LlmResource
from resources.policy import PolicyResource
from resources.tracker import TrackerResource


@journey_asset(kinds={"llm"})
async def analysis(
    context: dg.AssetExecutionContext,
    ticket: Artifact[Ticket],
    llm: LlmResource,
    knowledge: KnowledgeResource,
    artifacts: ArtifactsResource,
) -> Made:
    """What the ticket asks for: a job story, 2-5 testable acceptance criteria, and similar tickets solved before."""
    history = await read_history(context, artifacts.store())
    desk = consultant(context, llm, artifacts, history, "analysis", {"ticket": ticket})
    similar, problem = await _similar(knowledge, ticket.value)
    answer = await desk.ask("analyst", render("analyst", ticket=ticket.value, similar=similar))
    value = parse_analysis(answer, ticket.value)
    concerns = (*value.concerns, *([problem] if problem else []))
    return Made(
        value.model_copy(update={"similar": similar, "concerns": concerns}), metadata=usage_metadata(desk.usage)
    )


async def _similar(knowledge: KnowledgeResource, ticket: Ticket) -> tuple[tuple[Resolution, ...], str]:
    """Past resolutions. An index that cannot be read costs its help, never the ticket."""
    index = knowledge.index()
    if index is None:
        return (), ""
    try:
        return tuple(await index.similar(ticket.key.repo, f"{ticket.title}\n{ticket.body}"[:4000])), ""
    except AtelierError as error:
        return (), f"past resolutions could not be read ({error.code})"


@journey_asset(kinds={"llm"})
async def plan(
    context: dg.AssetExecutionContext,
    ticket: Artifact[Ticket],
    analysis: Artifact[Analysis],
    llm: LlmResource,
    artifacts: ArtifactsResource,
) -> Made:
    """How the work is split into sub-tasks, checked by code: scopes that overlap, dependencies that cannot be met."""
    history = await read_history(context, artifacts.store())
    start = planning_start(history)
    desk = consultant(context, llm, artifacts, history, "plan", {"ticket": ticket, "analysis": analysis})
    prompt = render("planner", ticket=ticket.value, analysis=analysis.value, objections=start.objections)
    value = _read_plan(await desk.ask("planner", prompt), ticket.value)
    return Made(value, attempt=start.attempt, feedback=start.feedback, metadata=usage_metadata(desk.usage))


def _read_plan(answer: str, ticket: Ticket) -> Plan:
    try:
        tasks = parse_plan(answer)
    except InvalidInput as error:
        return reduce_to_one(None, ticket, f"the planner's answer could not be read: {error.message}")
    findings = check_plan(tasks, greenfield=ticket.is_greenfield)
    return Plan(tasks=tasks, greenfield=ticket.is_greenfield, findings=findings, answered=parse_answered(answer))


@journey_asset(kinds={"llm"})
async def greenfield_spec(
    context: dg.AssetExecutionContext,
    ticket: Artifact[Ticket],
    analysis: Artifact[Analysis],
    plan: Artifact[Plan],
    llm: LlmResource,
    artifacts: ArtifactsResource,
) -> Made:
    """What an empty repository gets first: entry point, manifest, tree, technology, test command."""
    if not ticket.value.is_greenfield:
        return Made(GreenfieldSpec(applies=False))
    history = await read_history(context, artifacts.store())
    inputs = {"ticket": ticket, "analysis": analysis, "plan": plan}
    desk = consultant(context, llm, artifacts, history, "greenfield_spec", inputs)
    prompt = render("greenfield", ticket=ticket.value, analysis=analysis.value, plan=plan.value)
    try:
        spec = parse_greenfield(await desk.ask("greenfield", prompt))
    except InvalidInput as error:  # the developer can begin without a design; the architect and the human see why
        spec = GreenfieldSpec(applies=True, problem=f"the designer's answer could not be read: {error.message}")
    return Made(spec, metadata=usage_metadata(desk.usage))


@journey_asset(kinds={"llm"})
async def architecture_review(
    context: dg.AssetExecutionContext,
    ticket: Artifact[Ticket],
    analysis: Artifact[Analysis],
    plan: Artifact[Plan],
    greenfield_spec: Artifact[GreenfieldSpec],
    llm: LlmResource,
    artifacts: ArtifactsResource,
) -> Made:
    """The architect's verdict on the split, before any workshop exists. What the guards found is refused whatever a
    model says."""
    history = await read_history(context, artifacts.store())
    inputs = {"ticket": ticket, "analysis": analysis, "plan": plan, "greenfield_spec": greenfield_spec}
    desk = consultant(context, llm, artifacts, history, "architecture_review", inputs)
    prompt = render(
        "architect", ticket=ticket.value, analysis=analysis.value, plan=plan.value, spec=greenfield_spec.value
    )
    verdict = parse_review(await desk.ask("architect", prompt))
    found = tuple(finding.message for finding in plan.value.findings)
    if found:
        comments = (*found, *verdict.comments)
        verdict = ReviewVerdict(verdict=Decision.REQUEST_CHANGES, comments=comments, concern=verdict.concern)
    return Made(ArchitectureReview(verdict=verdict), metadata=usage_metadata(desk.usage))


@journey_asset(kinds={"lasuite"})
async def plan_document(
    context: dg.AssetExecutionContext, plan: Artifact[Plan], architecture_review: Artifact[ArchitectureReview]
) -> Made:
    """The ticket's page in La Suite Docs. Documents are off: it does not apply."""
    return Made(PlanDocument(applies=False))


@journey_asset(kinds={"python"}, gate=True)
async def approved_plan(
    context: dg.AssetExecutionContext,
    plan: Artifact[Plan],
    greenfield_spec: Artifact[GreenfieldSpec],
    architecture_review: Artifact[ArchitectureReview],
    plan_document: Artifact[PlanDocument],
    artifacts: ArtifactsResource,
    policy: PolicyResource,
    tracker: TrackerResource,
) -> Made | None:
    """Gate: the plan that goes on. Opens when the architect approves, or when the budget of replans is spent; with
    `plan_review = human` it waits for a person."""
    history = await read_history(context, artifacts.store())
    ruling = architecture_gate(history, policy.policy())
    if not ruling.open:
        context.log.info(f"gate stays closed: {ruling.reason}")
        return None
    approver = ""
    if policy.plan_review == "human":
        approver = await plan_approver(
            tracker.tracker(), ticket_key(context), plan.sha256, frozenset(policy.approvers), policy.bot
        )
        if not approver:
            await tell(tracker.tracker(), ticket_key(context), "plan", plan_waits(plan.value, plan.sha256))
            return None
    chosen = plan.value
    if ruling.overridden and chosen.findings:
        ticket = history.current("ticket")
        assert ticket is not None  # an input of the plan, which is current
        chosen = reduce_to_one(chosen, ticket.artifact.value, "its findings were still there when the budget was spent")
    return Made(
        ApprovedPlan(
            plan=chosen,
            spec=greenfield_spec.value,
            overridden=ruling.overridden,
            concerns=ruling.concerns,
            approved_by=approver,
        )
    )
