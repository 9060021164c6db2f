"""Resources make the clients that their configuration asks for; artifacts also on a real S3 server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from atelier_dagster.agents import CommandAgent, OpenCode
from atelier_dagster.artifacts import DirectoryStore
from atelier_dagster.factory.errors import Refused
from atelier_dagster.factory.ticket import RepoRef, TicketKey
from resources.agent import AgentResource
from resources.artifacts import ArtifactsResource
from resources.knowledge import KnowledgeResource
from resources.llm import LlmResource
from resources.policy import PolicyResource
from resources.repositories import RepositoriesResource
from tests.support.lines import Line, failure, made
from tests.support.seaweed import S3Server, seaweed
from tests.support.ticks import Ticks, ticks


def test_the_agent_is_what_was_chosen() -> None:
    assert isinstance(AgentResource(kind="command", command=["sh"]).agent(), CommandAgent)
    assert isinstance(AgentResource(binary="/opt/opencode").agent(), OpenCode)


def test_knowledge_that_is_off_has_no_index(tmp_path: Path) -> None:
    assert KnowledgeResource(uri=str(tmp_path), llm=LlmResource(), enabled=False).index() is None


def test_policy_gives_routing_its_part() -> None:
    policy = PolicyResource(architecture_redos=1, correction_redos=2, review_redos=4, plan_review="human").policy()
    assert (policy.architecture_redos, policy.correction_redos, policy.review_redos) == (1, 2, 4)
    assert policy.plan_review == "human"


def test_repositories_of_subgroups_lie_apart(tmp_path: Path) -> None:
    repositories = RepositoriesResource(root=str(tmp_path))
    paths = {
        repositories.repository(TicketKey(repo=RepoRef.parse(name), number=1)).path
        for name in ("local/a/b/c", "local/a/b", "other/a/b/c")
    }
    assert len(paths) == 3
    assert all(path.is_relative_to(tmp_path) for path in paths)


def test_a_key_of_the_model_is_a_secret_behind_the_resource() -> None:
    upstream = LlmResource(base_url="http://m", api_key="sesame", model="m").gateway().workshop_upstream
    assert "sesame" not in repr(upstream)
    assert upstream.api_key
    assert LlmResource(base_url="http://m").gateway().workshop_upstream.api_key is None


def test_a_directory_is_one_store_for_every_step_of_a_run(tmp_path: Path) -> None:
    resource = ArtifactsResource(root=str(tmp_path))
    assert isinstance(resource.objects(), DirectoryStore)
    assert resource.store() is resource.store()


# ----------------------------------------------------------------------------------------------------------- S3


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with seaweed() as running:
        running.client().create_bucket(Bucket="artifacts")
        yield running


@pytest.fixture
def house() -> Iterator[Ticks]:
    with ticks() as made_for_us:
        yield made_for_us


def on_s3(server: S3Server, secret: Any, prefix: str = "") -> ArtifactsResource:
    return ArtifactsResource(
        kind="s3", bucket="artifacts", prefix=prefix, region=server.region,
        endpoint_url=server.endpoint, access_key_id=server.access_key, secret_access_key=secret,
    )  # fmt: skip


@pytest.mark.service
def test_a_run_keeps_and_finds_its_artifacts_on_s3(
    server: S3Server, house: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_S3_SECRET", server.secret_key)
    with dg.build_resources({"artifacts": on_s3(server, dg.EnvVar("TEST_S3_SECRET"), prefix="here")}) as built:
        line = Line(house, store=built.artifacts.store())
        result = line.run()
        assert result.success
        assert made(result) == ["ticket", "analysis", "plan"]
        keys = asyncio.run(built.artifacts.objects().list("artifacts"))
        assert len(keys) == 3
    stored = server.client().list_objects_v2(Bucket="artifacts", Prefix="here/")["Contents"]
    assert {item["Key"].removeprefix("here/") for item in stored} >= set(keys)
    with dg.build_resources({"artifacts": on_s3(server, dg.EnvVar("TEST_S3_SECRET"), prefix="here")}) as built:
        assert Line(house, store=built.artifacts.store()).run("plan").success  # loads both inputs from S3


@pytest.mark.service
def test_a_wrong_secret_fails_the_step_with_a_code(server: S3Server, house: Ticks) -> None:
    resource = on_s3(server, "wrong")
    result = Line(house, store=resource.store()).run("ticket")
    description, metadata = failure(result)
    assert metadata["code"] == "REFUSED"
    assert metadata["what to do"] != "see the message"
    assert "wrong" not in description
    with pytest.raises(Refused):
        asyncio.run(resource.objects().get("artifacts/a/b/c.json"))


@pytest.mark.service
def test_a_secret_that_is_not_set_is_refused_by_name(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_S3_SECRET", raising=False)
    with (
        pytest.raises(dg.DagsterError, match="TEST_S3_SECRET"),
        dg.build_resources({"artifacts": on_s3(server, dg.EnvVar("TEST_S3_SECRET"))}),
    ):
        pass
