"""Validation: QA runs the merged application for real and keeps the evidence. Nothing here can fail a run."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import dagster as dg

from assets._desk import generation, token_metadata
from assets._site import Site, open_site, workshop_spec
from atelier_dagster.delivery import collect_evidence, run_agent
from atelier_dagster.delivery.tell import tell_reviewers
from atelier_dagster.factory.change import Evidence, Merge, PullRequest, QaReport, WorkshopRecord
from atelier_dagster.factory.errors import AtelierError, WorkshopFailed
from atelier_dagster.factory.lineage import Artifact
from atelier_dagster.factory.messages import qa_comment
from atelier_dagster.factory.prompts import render
from atelier_dagster.factory.ticket import Analysis, Ticket, TicketKey, branch_name, workshop_name
from atelier_dagster.factory.verdict import QaDecision, QaVerdict, parse_qa
from atelier_dagster.orchestration.step import Made, journey_asset, read_history, ticket_key
from atelier_dagster.ports import AgentAnswer
from resources.agent import AgentResource
from resources.artifacts import ArtifactsResource
from resources.forge import ForgeResource
from resources.llm import LlmResource
from resources.repositories import RepositoriesResource
from resources.workshops import WorkshopsResource

_PICTURE_BYTES = 300_000


@journey_asset(kinds={"agent"}, gate=True, reads={"merged": "merge"})
async def qa_report(
    context: dg.AssetExecutionContext,
    ticket: Artifact[Ticket],
    analysis: Artifact[Analysis],
    merged: Artifact[Merge],
    forge: ForgeResource,
    repositories: RepositoriesResource,
    workshops: WorkshopsResource,
    agent: AgentResource,
    llm: LlmResource,
    artifacts: ArtifactsResource,
) -> Made | None:
    """The verdict on the merged code from a fresh workshop, with its evidence. Unreadable or without evidence is a
    fail; so is every error of the infrastructure, which the verdict then names."""
    if not merged.value.merged:
        return None
    key, history = ticket_key(context), await read_history(context, artifacts.store())
    inputs = {"ticket": ticket, "analysis": analysis, "merge": merged}
    repeat = generation(history, "qa_report", inputs)
    record = WorkshopRecord(
        name=workshop_name(key, ticket.cycle, "qa"),
        task_id="qa",
        branch=branch_name(key, ticket.cycle, "qa"),
        start_commit=merged.value.commit,
        scope=(),
        devcontainer=workshops.qa_devcontainer,
        role="qa",
    )
    metadata: dict[str, Any] = {}
    try:
        site = await open_site(key, forge, repositories, workshops, branches=[ticket.value.base_branch])
        answer = await _examine(site, context, record, ticket.value, analysis.value, agent, llm, repeat)
        verdict, evidence, problems = await _judge(site, artifacts, key.partition, ticket.cycle, record, answer)
        metadata = token_metadata(answer.tokens_in, answer.tokens_out) | await _picture(artifacts, evidence)
        await site.workshops.suspend(record.name)
    except (AtelierError, OSError) as error:
        comment = f"QA could not examine the application: {error}"
        verdict = QaVerdict(verdict=QaDecision.FAIL, comments=(comment,))
        evidence, problems = (), (str(error),)
    report = QaReport(commit=merged.value.commit, verdict=verdict, evidence=evidence, problems=problems)
    await _comment(context, forge, history.value("pull_request", PullRequest), report, ticket.cycle)
    return Made(report, metadata=metadata)


async def _picture(artifacts: ArtifactsResource, evidence: Sequence[Evidence]) -> dict[str, Any]:
    """The first screenshot, for people who would rather look than read; kept small, since events hold it."""
    for item in evidence:
        if item.object.media_type == "image/png" and item.object.size <= _PICTURE_BYTES:
            data = base64.b64encode(await artifacts.store().get_object(item.object)).decode()
            return {"screenshot": dg.MetadataValue.md(f"![what QA saw](data:image/png;base64,{data})")}
    return {}


async def _examine(
    site: Site,
    context: dg.AssetExecutionContext,
    record: WorkshopRecord,
    ticket: Ticket,
    analysis: Analysis,
    agent: AgentResource,
    llm: LlmResource,
    repeat: int,
) -> AgentAnswer:
    key = ticket_key(context)
    await _require_devcontainer(site, key, record)
    await site.workshops.create(workshop_spec(site, key, f"{key.slug}-qa", record))
    status = await site.workshops.wait_running(record.name)
    prompt = render("qa", ticket=ticket, analysis=analysis)
    answer, _ = await run_agent(
        site.workshops,
        agent.agent(),
        status,
        prompt=prompt.as_one(),
        exec_id=f"qa-{record.start_commit[:16]}-{repeat}",
        model=llm.model,
        timeout=agent.qa_timeout,
    )
    return answer


async def _require_devcontainer(site: Site, key: TicketKey, record: WorkshopRecord) -> None:
    """A devcontainer that is configured for QA, and is not in the merged code, is a mistake: nothing replaces it."""
    path = record.devcontainer
    if path and await site.forge.get_file(key.repo, record.start_commit, path) is None:
        raise WorkshopFailed(
            f"QA's workshop cannot start: {path} is not in the merged code",
            fix="mend ATELIER_QA_DEVCONTAINER, or add the file",
            code="DEVCONTAINER_MISSING",
        )


async def _judge(
    site: Site,
    artifacts: ArtifactsResource,
    partition: str,
    cycle: int,
    record: WorkshopRecord,
    answer: AgentAnswer,
) -> tuple[QaVerdict, tuple[Evidence, ...], tuple[str, ...]]:
    verdict = parse_qa(answer.text)
    evidence, problems = await collect_evidence(site.workshops, artifacts.store(), record.name, partition, cycle)
    if answer.error:
        problems = (*problems, f"the agent ended badly: {answer.error}")
    if verdict.verdict is QaDecision.PASS and not evidence:
        comments = (*verdict.comments, "the agent said pass, but none of its evidence could be kept")
        verdict = verdict.model_copy(update={"verdict": QaDecision.FAIL, "comments": comments})
    return verdict, tuple(evidence), tuple(problems)


async def _comment(
    context: dg.AssetExecutionContext,
    forge: ForgeResource,
    opened: PullRequest | None,
    report: QaReport,
    cycle: int,
) -> None:
    if opened is None:
        return
    key = ticket_key(context)
    try:
        await tell_reviewers(forge.forge(), key.repo, opened.number, f"qa-{cycle}", qa_comment(report))
    except AtelierError as error:  # the verdict stands, told or not
        context.log.warning(f"QA's verdict could not be told: {error}")
