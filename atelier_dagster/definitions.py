"""The composition root: settings become resources, resources meet assets and sensors. Nothing is wired elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import dagster as dg

from assets import building, delivery, intake, planning, reviewing, validation
from atelier_dagster.agents import find_opencode
from atelier_dagster.orchestration.jobs import build_jobs
from atelier_dagster.orchestration.step import IO_MANAGER
from atelier_dagster.settings import Settings, load_settings
from resources.agent import AgentResource
from resources.artifacts import ArtifactsResource
from resources.forge import ForgeResource
from resources.io import ArtifactIO
from resources.knowledge import KnowledgeResource
from resources.llm import LlmResource
from resources.policy import PolicyResource
from resources.repositories import RepositoriesResource
from resources.tracker import TrackerResource
from resources.workshops import WorkshopsResource
from sensors.approval import approval_watch
from sensors.housekeeping import housekeeping
from sensors.intake import intake as intake_sensor
from sensors.progress import progress


def _secret(name: str) -> Any:
    """A secret enters a resource only as the name of its environment variable, so that the UI never shows it."""
    return dg.EnvVar(name) if os.environ.get(name) else ""


def build_resources(settings: Settings, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The resources that settings describe. One that is overridden is also what others are built upon.

    Raises `KeyError` for an override of something that is no resource.
    """
    given = dict(overrides or {})
    resources = _built_upon(
        settings,
        artifacts=given.get("artifacts") or _artifacts(settings),
        llm=given.get("llm") or _llm(settings),
        agent=given.get("agent") or _agent(settings),
    )
    unknown = set(given) - set(resources)
    if unknown:
        raise KeyError(f"no such resource: {', '.join(sorted(unknown))}")
    return {**resources, **given}


def _artifacts(settings: Settings) -> ArtifactsResource:
    return ArtifactsResource(
        kind=settings.artifacts,
        root=str(settings.home.resolve() / "artifacts"),
        bucket=settings.s3_bucket,
        prefix=settings.s3_prefix,
        endpoint_url=settings.s3_endpoint_url,
        region=settings.s3_region,
        access_key_id=settings.s3_access_key_id,
        secret_access_key=_secret("ATELIER_S3_SECRET_ACCESS_KEY"),
    )


def _llm(settings: Settings) -> LlmResource:
    return LlmResource(
        base_url=settings.llm_base_url,
        api_key=_secret("ATELIER_LLM_API_KEY"),
        model=settings.llm_model,
        role_models=settings.llm_role_models,
        embedding_model=settings.llm_embedding_model,
        timeout=settings.llm_timeout,
    )


def _agent(settings: Settings) -> AgentResource:
    opencode = settings.agent_binary or find_opencode(settings.home.resolve() / "tools")
    return AgentResource(
        kind=settings.agent,
        binary=str(opencode or ""),
        command=list(settings.agent_command),
        timeout=settings.agent_timeout,
        test_timeout=settings.test_timeout,
        qa_timeout=settings.qa_timeout,
    )


def _built_upon(settings: Settings, artifacts: Any, llm: Any, agent: Any) -> dict[str, Any]:
    home = settings.home.resolve()
    return {
        "artifacts": artifacts,
        IO_MANAGER: ArtifactIO(artifacts=artifacts),
        "llm": llm,
        "agent": agent,
        "workshops": WorkshopsResource(
            root=str(home / "workshops"),
            agent=agent,
            llm=llm,
            unsafe=settings.workshops_unsafe,
            egress=list(settings.egress),
            memory_mib=settings.workshops_memory_mib,
            processes=settings.workshops_processes,
            disk_mib=settings.workshops_disk_mib,
            qa_devcontainer=settings.qa_devcontainer,
        ),
        "tracker": TrackerResource(root=str(home / "forge"), bot=settings.bot),
        "forge": ForgeResource(root=str(home / "forge"), bot=settings.bot),
        "repositories": RepositoriesResource(root=str(home / "repositories")),
        "knowledge": KnowledgeResource(uri=str(home / "knowledge"), llm=llm, enabled=settings.knowledge),
        "policy": PolicyResource(
            architecture_redos=settings.architecture_redos,
            correction_redos=settings.correction_redos,
            review_redos=settings.review_redos,
            plan_review=settings.plan_review,
            label=settings.label,
            authors=list(settings.authors),
            approvers=list(settings.approvers),
            bot=settings.bot,
            allow_ui_approval=settings.allow_ui_approval,
            workshop_ttl_hours=settings.workshop_ttl_hours,
        ),
    }


def build_defs(resource_overrides: Mapping[str, Any] | None = None, settings: Settings | None = None) -> dg.Definitions:
    """The definitions of one installation. Any resource can be replaced by key; a test needs nothing else."""
    return dg.Definitions(
        assets=dg.load_assets_from_modules(  # pyright: ignore[reportUnknownMemberType]
            [intake, planning, building, reviewing, delivery, validation]
        ),
        jobs=build_jobs(),
        sensors=[intake_sensor, progress, approval_watch, housekeeping],
        resources=build_resources(settings or load_settings(), resource_overrides),
        executor=dg.in_process_executor,
    )


defs = build_defs()
