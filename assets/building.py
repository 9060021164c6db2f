"""Building: workshops, what agents change in them, one branch out of all, its diff, its tests, and the gate behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import dagster as dg

from assets._desk import token_metadata
from assets._site import Site, open_site, union_of_scopes, workshop_spec
from atelier_dagster.delivery import delegate, integrate, tokens_of, verify
from atelier_dagster.factory.change import (
    Campaign,
    Changes,
    DiffStat,
    Integration,
    TaskChange,
    TestedDiff,
    TestReport,
    WorkshopRecord,
)
from atelier_dagster.factory.errors import NothingChanged
from atelier_dagster.factory.lineage import Artifact, History
from atelier_dagster.factory.plan import ApprovedPlan, SubTask, waves
from atelier_dagster.factory.prompts import render
from atelier_dagster.factory.routing import building_start, tests_gate
from atelier_dagster.factory.ticket import Analysis, Ticket, TicketKey, branch_name, workshop_name
from atelier_dagster.orchestration.display import code_block
from atelier_dagster.orchestration.step import Made, journey_asset, read_history, ticket_key
from resources.agent import AgentResource
from resources.artifacts import ArtifactsResource
from resources.forge import ForgeResource
from resources.llm import LlmResource
from resources.policy import PolicyResource
from resources.repositories import RepositoriesResource
from resources.workshops import WorkshopsResource

_TAIL_CHARACTERS = 6_000


@journey_asset(kinds={"sandbox"})
async def workshops(
    context: dg.AssetExecutionContext,
    ticket: Artifact[Ticket],
    approved_plan: Artifact[ApprovedPlan],
    forge: ForgeResource,
    repositories: RepositoriesResource,
    workshops: WorkshopsResource,
    artifacts: ArtifactsResource,
) -> Made:
    """One workshop per sub-task; for rework, one on the integration branch with the union of the scopes."""
    key, history = ticket_key(context), await read_history(context, artifacts.store())
    start = building_start(history)
    records = rework_records(key, ticket, approved_plan.value, history) if start.rework else ()
    records = records or _first_delivery(key, ticket, approved_plan.value.plan.tasks)
    campaign = Campaign(
        id=f"{key.slug}-{ticket.cycle}",
        round=start.round,
        attempt=start.attempt,
        workshops=tuple(records),
        rework=start.rework,
        feedback=start.feedback_texts,
    )
    site = await open_site(key, forge, repositories, workshops, branches=[ticket.value.base_branch])
    await asyncio.gather(*(_provide(site, key, campaign, record) for record in records))
    return Made(campaign, round=start.round, attempt=start.attempt, feedback=start.feedback)


def _first_delivery(key: TicketKey, ticket: Artifact[Ticket], tasks: Sequence[SubTask]) -> Sequence[WorkshopRecord]:
    return [
        WorkshopRecord(
            name=workshop_name(key, ticket.cycle, task.id),
            task_id=task.id,
            branch=branch_name(key, ticket.cycle, task.id),
            start_commit=ticket.value.base_commit,
            scope=task.scope,
            devcontainer=task.devcontainer,
            role=task.role,
        )
        for task in tasks
    ]


def rework_records(
    key: TicketKey, ticket: Artifact[Ticket], plan: ApprovedPlan, history: History
) -> Sequence[WorkshopRecord]:
    """The workshop of the first sub-task goes on, from what has been integrated."""
    integrated = history.all("integration", ticket.cycle)
    if not integrated:
        return ()
    integration = integrated[-1].artifact.value
    first = plan.plan.tasks[0]
    return [
        WorkshopRecord(
            name=workshop_name(key, ticket.cycle, first.id),
            task_id="rework",
            branch=integration.branch,
            start_commit=integration.head,
            scope=union_of_scopes(plan.plan.tasks),
            devcontainer=first.devcontainer,
            role=first.role,
        )
    ]


async def _provide(site: Site, key: TicketKey, campaign: Campaign, record: WorkshopRecord) -> None:
    await site.workshops.create(workshop_spec(site, key, campaign.id, record))
    await site.workshops.wait_running(record.name)


@journey_asset(kinds={"agent"}, reads={"campaign": "workshops"})
async def changes(
    context: dg.AssetExecutionContext,
    ticket: Artifact[Ticket],
    analysis: Artifact[Analysis],
    approved_plan: Artifact[ApprovedPlan],
    campaign: Artifact[Campaign],
    forge: ForgeResource,
    repositories: RepositoriesResource,
    workshops: WorkshopsResource,
    agent: AgentResource,
    llm: LlmResource,
    artifacts: ArtifactsResource,
) -> Made:
    """What each agent delivered. Independent sub-tasks run at the same time, one that depends on others after them."""
    key = ticket_key(context)
    site = await open_site(key, forge, repositories, workshops, branches=[ticket.value.base_branch])
    order = waves_of(campaign.value, approved_plan.value)
    done: list[TaskChange] = []
    for wave in order:
        jobs = [
            delegate(
                site.workshops,
                agent.agent(),
                site.repository,
                artifacts.store(),
                spec=workshop_spec(site, key, campaign.value.id, record),
                record=record,
                prompt=_prompt(ticket.value, analysis.value, approved_plan.value, campaign.value, record),
                attempt_id=attempt_id(campaign, record),
                model=llm.model,
                timeout=agent.timeout,
            )
            for record in wave
        ]
        # every delivery that was paid for is recorded in its workshop before a failure of another one counts
        results = await asyncio.gather(*jobs, return_exceptions=True)
        done += [result for result in results if isinstance(result, TaskChange)]
        for failure in (result for result in results if isinstance(result, BaseException)):
            raise failure
    used = [await tokens_of(artifacts.store(), change.attempt_id) for change in done]
    return Made(Changes(tasks=tuple(done)), metadata=token_metadata(sum(i for i, _ in used), sum(o for _, o in used)))


def waves_of(campaign: Campaign, approved: ApprovedPlan) -> Sequence[Sequence[WorkshopRecord]]:
    """Who works at the same time: whoever depends on others comes after them. A rework is one agent's."""
    if campaign.rework:
        return [campaign.workshops]
    records = {record.task_id: record for record in campaign.workshops}
    return [[records[task.id] for task in wave] for wave in waves(approved.plan.tasks)]


def attempt_id(campaign: Artifact[Campaign], record: WorkshopRecord) -> str:
    """Names one delivery of one agent: the same campaign artifact never pays for it twice."""
    return f"{campaign.sha256[:16]}-{record.task_id}"


def _prompt(
    ticket: Ticket, analysis: Analysis, approved: ApprovedPlan, campaign: Campaign, record: WorkshopRecord
) -> str:
    task = next((task for task in approved.plan.tasks if task.id == record.task_id), None)
    role = "rework" if campaign.rework else "developer"
    prompt = render(
        role,
        ticket=ticket,
        analysis=analysis,
        plan=approved.plan,
        spec=approved.spec,
        task=task,
        scope=record.scope,
        feedback=campaign.feedback,
    )
    return prompt.as_one()


@journey_asset(kinds={"git"}, reads={"campaign": "workshops"})
async def integration(
    context: dg.AssetExecutionContext,
    ticket: Artifact[Ticket],
    campaign: Artifact[Campaign],
    changes: Artifact[Changes],
    forge: ForgeResource,
    repositories: RepositoriesResource,
    workshops: WorkshopsResource,
) -> Made:
    """The pull request's head: every delivery merged, on top of the base branch as it is now. A branch that conflicts
    is left out, and said to be."""
    key = ticket_key(context)
    branch = branch_name(key, ticket.cycle)
    site = await open_site(key, forge, repositories, workshops, branches=[ticket.value.base_branch, branch])
    value = await integrate(
        site.repository,
        branch=branch,
        base_branch=ticket.value.base_branch,
        start=ticket.value.base_commit,
        base_now=site.tips.get(ticket.value.base_branch, ""),
        pushed=site.tips.get(branch, ""),
        changes=changes.value.tasks,
    )
    return Made(value)


@journey_asset(kinds={"git"})
async def diff(
    context: dg.AssetExecutionContext,
    integration: Artifact[Integration],
    repositories: RepositoriesResource,
    artifacts: ArtifactsResource,
) -> Made:
    """The change under review: git's own `base...head`. Nothing changed at all is an error that the ticket is told."""
    value = integration.value
    found = await repositories.repository(ticket_key(context)).diff(value.base, value.head)
    if not found.files:
        raise NothingChanged(
            "no agent changed anything", fix="say in the ticket what is to change, then comment `/atelier retry`"
        )
    text = await artifacts.store().put_object(found.text, "text/x-diff")
    stat = DiffStat(
        base=value.base,
        head=value.head,
        paths=found.paths,
        text=text,
        files=found.files,
        insertions=found.insertions,
        deletions=found.deletions,
        binary=found.binary,
    )
    shown = found.text[:20_000].decode(errors="replace")
    return Made(stat, metadata={"diff": dg.MetadataValue.md(code_block(shown, "diff", 12_000))})


@journey_asset(kinds={"shell"}, reads={"campaign": "workshops"})
async def test_report(
    context: dg.AssetExecutionContext,
    campaign: Artifact[Campaign],
    integration: Artifact[Integration],
    forge: ForgeResource,
    repositories: RepositoriesResource,
    workshops: WorkshopsResource,
    agent: AgentResource,
    artifacts: ArtifactsResource,
) -> Made:
    """Exit code and output of `.devcontainer/test.sh` on the integrated head, in a fresh clone inside a workshop."""
    key = ticket_key(context)
    site = await open_site(key, forge, repositories, workshops, branches=[])
    record = campaign.value.workshops[0]
    report = await verify(
        site.workshops,
        site.repository,
        artifacts.store(),
        spec=workshop_spec(site, key, campaign.value.id, record),
        head=integration.value.head,
        exec_id=f"test-{integration.sha256[:16]}-{context.run.run_id[:8]}",
        timeout=agent.test_timeout,
        tail=_TAIL_CHARACTERS,
    )
    return Made(report)


@journey_asset(kinds={"python"}, gate=True)
async def tested_diff(
    context: dg.AssetExecutionContext,
    diff: Artifact[DiffStat],
    test_report: Artifact[TestReport],
    artifacts: ArtifactsResource,
    policy: PolicyResource,
) -> Made | None:
    """Gate: opens when the tests pass, or when the budget of corrections is spent."""
    ruling = tests_gate(await read_history(context, artifacts.store()), policy.policy())
    if not ruling.open:
        context.log.info(f"gate stays closed: {ruling.reason}")
        return None
    return Made(TestedDiff(head=diff.value.head, overridden=ruling.overridden, concerns=ruling.concerns))
