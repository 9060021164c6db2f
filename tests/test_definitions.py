"""The inventory of what Dagster is given, and that it loads anywhere: offline, without credentials, quickly."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from atelier_dagster.definitions import build_defs, build_resources
from atelier_dagster.factory.lineage import ASSETS, JOBS, UPSTREAM
from atelier_dagster.orchestration.partitions import tickets_partitions
from atelier_dagster.orchestration.step import GROUPS
from atelier_dagster.settings import Settings
from resources.artifacts import ArtifactsResource
from resources.llm import LlmResource
from resources.policy import PolicyResource

ROOT = Path(__file__).resolve().parents[1]
GATES = {"approved_plan", "tested_diff", "review_gate", "merge", "knowledge", "qa_report"}
REVIEWS = {"code_review", "security_review", "ops_review"}
KINDS = {
    "ticket": "markdown", "analysis": "llm", "plan": "llm", "greenfield_spec": "llm", "architecture_review": "llm",
    "plan_document": "lasuite", "approved_plan": "python", "workshops": "sandbox", "changes": "agent",
    "integration": "git", "diff": "git", "test_report": "shell", "tested_diff": "python", "code_review": "llm",
    "security_review": "llm", "ops_review": "llm", "review_gate": "python", "pull_request": "git",
    "approval": "human", "merge": "git", "knowledge": "lancedb", "qa_report": "agent", "outcome": "python",
}  # fmt: skip


@pytest.fixture(scope="module")
def repository() -> Any:
    return build_defs(settings=Settings(home=Path("unused"))).get_repository_def()


def specs(repository: Any) -> dict[str, dg.AssetSpec]:
    return {spec.key.to_user_string(): spec for asset in repository.assets_defs_by_key.values() for spec in asset.specs}


def test_every_asset_of_the_journey_is_there_and_says_what_it_is(repository: Any) -> None:
    found = specs(repository)
    assert set(found) == set(ASSETS)
    assert {name: next(iter(spec.kinds)) for name, spec in found.items()} == KINDS
    for name, spec in found.items():
        assert name in GROUPS[str(spec.group_name)]
        assert list(spec.owners) == ["team:atelier"], name
        assert spec.description, name
        assert spec.partitions_def == tickets_partitions, name
        assert spec.automation_condition is None, name  # pyright: ignore[reportUnknownMemberType]


def test_the_edges_of_the_graph_are_those_of_the_domain(repository: Any) -> None:
    edges = {
        key.to_user_string(): {parent.to_user_string() for parent in repository.asset_graph.get(key).parent_keys}
        for key in repository.asset_graph.get_all_asset_keys()
    }
    watched = {"outcome": {"approval"}}
    assert edges == {asset: set(upstream) | watched.get(asset, set()) for asset, upstream in UPSTREAM.items()}


def test_gates_and_reviews_alone_may_yield_nothing(repository: Any) -> None:
    optional: set[str] = set()
    for definition in set(repository.assets_defs_by_key.values()):
        for name, output in definition.node_def.output_dict.items():
            key = definition.keys_by_output_name[name].to_user_string()
            optional |= set() if output.is_required else {key}
            assert output.io_manager_key == "artifact_io", key
    assert optional == GATES | REVIEWS


def test_the_three_jobs_hold_their_assets_and_run_in_process(repository: Any) -> None:
    jobs = {job.name: job for job in repository.get_all_jobs() if not job.name.startswith("__")}
    assert set(jobs) == {"deliver", "release", "close"}
    for name, job in jobs.items():
        assert {key.to_user_string() for key in job.asset_layer.selected_asset_keys} == set(JOBS[name])
        assert job.executor_def is dg.in_process_executor
        assert job.partitions_def == tickets_partitions
        assert job.description
    assert repository.get_job("__ASSET_JOB").executor_def is dg.in_process_executor


def test_the_four_sensors_run_by_themselves(repository: Any) -> None:
    sensors = {sensor.name: sensor for sensor in repository.sensor_defs}
    intervals = {name: sensor.minimum_interval_seconds for name, sensor in sensors.items()}
    assert intervals == {"intake": 3, "progress": 3, "approval_watch": 3, "housekeeping": 60}
    for sensor in sensors.values():
        assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
        assert sensor.description
        assert {target.job_name for target in sensor.targets} == {"deliver", "release", "close"}
    assert not repository.schedule_defs


def test_the_resources_are_those_that_assets_and_sensors_name(repository: Any) -> None:
    assert set(repository.get_top_level_resources()) == {
        "artifacts", "artifact_io", "llm", "agent", "workshops", "tracker", "forge", "repositories", "knowledge",
        "policy",
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------- resources


def test_an_overridden_resource_is_replaced_wherever_others_are_built_upon_it() -> None:
    settings = Settings(home=Path("unused"))
    artifacts, llm = ArtifactsResource(root="/elsewhere"), LlmResource(model="another")
    made = build_resources(settings, {"artifacts": artifacts, "llm": llm})
    assert made["artifacts"] is artifacts
    assert made["artifact_io"].artifacts.root == "/elsewhere"
    assert made["workshops"].llm.model == made["knowledge"].llm.model == "another"


def test_any_resource_can_be_overridden_and_nothing_else() -> None:
    settings = Settings(home=Path("unused"))
    for name, made in build_resources(settings).items():
        assert build_resources(settings, {name: made})[name] is made
    policy = PolicyResource(label="other")
    assert build_defs({"policy": policy}, settings).resources["policy"] is policy  # type: ignore[index]
    with pytest.raises(KeyError, match="no such resource: magic"):
        build_defs({"magic": policy}, settings)


def test_secrets_of_the_environment_are_named_in_the_ui_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATELIER_S3_SECRET_ACCESS_KEY", "ATELIER_LLM_API_KEY"):
        monkeypatch.setenv(name, f"sesame-{name}")
    from dagster._core.remote_representation.external_data import RepositorySnap

    defs = build_defs(settings=Settings(home=Path("unused")))
    snapshot = RepositorySnap.from_def(defs.get_repository_def())
    shown = dg.serialize_value(snapshot)
    assert "ATELIER_LLM_API_KEY" in shown
    assert "ATELIER_S3_SECRET_ACCESS_KEY" in shown
    assert "sesame" not in shown
    with dg.build_resources({"llm": build_resources(Settings(home=Path("unused")))["llm"]}) as built:
        assert built.llm.api_key == "sesame-ATELIER_LLM_API_KEY"


# ------------------------------------------------------------------------------------------------------- loading

_LOAD = """
    import socket, sys, threading, time

    def refuse(*args, **kwargs):
        raise AssertionError("the network was used")

    socket.socket.connect = refuse
    socket.getaddrinfo = refuse
    started = time.process_time()
    from atelier_dagster.definitions import defs

    defs.get_repository_def()
    spent = time.process_time() - started
    heavy = {"openai", "lancedb", "numpy", "pyarrow", "pandas", "boto3", "dagster_aws"} & set(sys.modules)
    assert not heavy, f"imported: {heavy}"
    assert threading.active_count() == 1, threading.enumerate()
    import pathlib
    tasks = list(pathlib.Path("/proc/self/task").iterdir())
    assert len(tasks) == 1, f"{len(tasks)} threads"
    assert spent < 20, f"{spent:.1f} s of CPU"
    print("loaded")
"""


def test_definitions_load_in_a_fresh_interpreter_offline_and_quietly(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-W", "error", "-c", textwrap.dedent(_LOAD)]
    done = subprocess.run(argv, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "loaded\n", done.stderr[-3000:]
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []  # loading makes nothing


# ------------------------------------------------------------------------------------------------- configuration


def test_dagster_yaml_loads_and_says_what_the_documentation_says(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text().replace(".atelier/", f"{tmp_path}/"))
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert not instance.telemetry_enabled
        assert not instance.nux_enabled
        assert not instance.run_retries_enabled
        assert instance.run_monitoring_enabled
        assert instance.run_monitoring_max_resume_run_attempts == 0
        concurrency = instance.get_concurrency_config()
        assert concurrency.run_queue_config
        assert concurrency.run_queue_config.max_concurrent_runs == 8
        (limit,) = concurrency.run_queue_config.tag_concurrency_limits
        assert limit == {"key": "dagster/partition", "value": {"applyLimitPerUniqueValue": True}, "limit": 1}
        assert type(instance.run_launcher).__name__ == "WarmRunLauncher"
        assert type(instance.run_coordinator).__name__ == "QueuedRunCoordinator"
        days = {
            kind: {status.value: days for status, days in instance.get_tick_retention_settings(kind).items()}
            for kind in (dg_instigator("SENSOR"), dg_instigator("SCHEDULE"))
        }
        sensor, schedule = days.values()
        assert sensor == {"SKIPPED": 2, "FAILURE": 30, "SUCCESS": 30, "STARTED": -1}
        assert schedule["SUCCESS"] == 90
    operating = (ROOT / "docs" / "operating.md").read_text()
    assert "At most one run of a ticket is active at a time, and eight in all (`dagster.yaml`)" in operating
    assert "run retries are off: only routing restarts" in operating


def dg_instigator(name: str) -> Any:
    from dagster._core.definitions.run_request import InstigatorType

    return InstigatorType[name]


def test_workspace_yaml_names_the_definitions_by_module() -> None:
    from dagster._core.workspace.load import location_origins_from_yaml_paths

    (origin,) = location_origins_from_yaml_paths([str(ROOT / "workspace.yaml")])
    assert origin.location_name == "atelier"
    loadable: Any = getattr(origin, "loadable_target_origin")  # noqa: B009
    assert loadable.module_name == "atelier_dagster.definitions"
    assert yaml.safe_load((ROOT / "workspace.yaml").read_text())
