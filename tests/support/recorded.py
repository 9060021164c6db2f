"""A ticket with recorded artifacts in a home, as runs of the journey leave them: for tests of what reads them."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import BaseModel

from atelier_dagster.artifacts import ArtifactStore, DirectoryStore
from atelier_dagster.cli.home import dagster_directory, prepare_home
from atelier_dagster.factory.change import DiffStat, ObjectRef, PullRequest, ReviewGate
from atelier_dagster.factory.lineage import Artifact
from atelier_dagster.factory.plan import Plan, SubTask
from atelier_dagster.factory.ticket import Ticket, TicketKey
from atelier_dagster.factory.verdict import Decision, Review, ReviewVerdict
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.partitions import TICKETS


@cache
def _prepared() -> Path:
    """Dagster's databases, made once: that takes seconds."""
    scratch = Path(tempfile.mkdtemp(prefix="atelier-recorded-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return asyncio.run(prepare_home(scratch))


class Recorder:
    """Records values as artifacts of one ticket; `made` gives those recorded so far, by asset."""

    def __init__(self, home: Path, key: TicketKey) -> None:
        self.home = home
        self.key = key
        self.made: dict[str, Artifact[Any]] = {}
        if not dagster_directory(home).exists():
            shutil.copytree(_prepared(), dagster_directory(home))
        self._directory = asyncio.run(prepare_home(home))  # only the paths in its configuration change
        self._store = ArtifactStore(DirectoryStore(home / "artifacts"))
        with self._instance() as instance:
            instance.add_dynamic_partitions(TICKETS, [key.partition])

    def record(self, asset: str, value: BaseModel, *reads: str, cycle: int = 1, **metadata: Any) -> Artifact[Any]:
        """One materialization, made from what was recorded last of the assets that it reads."""
        artifact = Artifact[type(value)](
            asset=asset,
            ticket=self.key.partition,
            cycle=cycle,
            inputs={name: self.made[name].sha256 for name in reads},
            value=value,
        )
        asyncio.run(self._store.put(artifact))
        event = dg.AssetMaterialization(
            asset_key=asset,
            partition=self.key.partition,
            metadata=metadata,
            tags={tags.DATA_VERSION: artifact.sha256},
        )
        with self._instance() as instance:
            instance.report_runless_asset_event(event)
        self.made[asset] = artifact
        return artifact

    def _instance(self) -> dg.DagsterInstance:
        return dg.DagsterInstance.from_config(str(self._directory))


def ticket(key: TicketKey, title: str = "Sort the list") -> Ticket:
    """A ticket's value."""
    return Ticket(key=key, title=title, body="why", author="ada", base_branch="main", base_commit="1" * 40)


def plan(*titles: str) -> Plan:
    """A plan with one task a title."""
    tasks = [SubTask(id=f"t{i}", title=title, scope=(f"src/{i}/**",)) for i, title in enumerate(titles or ("all",))]
    return Plan(tasks=tuple(tasks))


def review(role: str, verdict: Decision = Decision.APPROVE, *comments: str) -> Review:
    """A review that was asked for."""
    return Review(role=role, triggered=True, verdict=ReviewVerdict(verdict=verdict, comments=comments))


def diff(head: str) -> DiffStat:
    """A small diff."""
    text = ObjectRef(sha256="0" * 64, size=3)
    return DiffStat(base="1" * 40, head=head, paths=("a.py", "b.py"), text=text, files=2, insertions=7, deletions=1)


def gate(head: str, *concerns: str) -> ReviewGate:
    """An open gate."""
    return ReviewGate(head=head, concerns=concerns)


def pull_request(number: int, head: str, *concerns: str) -> PullRequest:
    """A pull request's value."""
    return PullRequest(
        number=number, url=f"file:///pulls/{number}.md", title="Sort the list", body="what", head=head, base="1" * 40,
        branch="atelier/1", base_branch="main", changed_files=2, diff_sha256="0" * 64, concerns=concerns,
    )  # fmt: skip
