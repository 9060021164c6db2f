"""Sensors as the daemon runs them: on an instance with storage, with every run request checked and launched once.

Runs are recorded, never executed; what they would have left is recorded by `replay` from a pure journey.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import dagster as dg
from alembic.config import Config
from alembic.script import ScriptDirectory

from atelier_dagster.artifacts import ArtifactStore, DirectoryStore
from atelier_dagster.cli.home import dagster_directory, prepare_home
from atelier_dagster.definitions import build_defs, build_resources
from atelier_dagster.factory.approval import HumanDecision
from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.factory.lineage import JOBS, Artifact, History
from atelier_dagster.factory.ticket import RepoRef, TicketKey
from atelier_dagster.forges import LocalTracker
from atelier_dagster.orchestration import partitions, tags
from atelier_dagster.orchestration.history import HistoryReader
from atelier_dagster.ports import Comment, Forge, Issue, Tracker, Workshops, WorkshopStatus
from atelier_dagster.settings import Settings
from resources.forge import ForgeResource
from resources.tracker import TrackerResource
from resources.workshops import WorkshopsResource
from tests.support.journey import Journey

Status = Literal["success", "failure", "cancelled"]
_SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_ENDS = {
    "success": dg.DagsterEventType.RUN_SUCCESS,
    "failure": dg.DagsterEventType.RUN_FAILURE,
    "cancelled": dg.DagsterEventType.RUN_CANCELED,
}


@cache
def repository() -> Any:
    """The definitions as a code server holds them: made once, since resources are given to each tick."""
    return build_defs(settings=Settings(home=Path("unused"))).get_repository_def()


@cache
def _template() -> Path:
    """Dagster's databases, made once: that takes seconds."""
    scratch = Path(tempfile.mkdtemp(prefix="atelier-ticks-", dir=_SCRATCH))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return asyncio.run(prepare_home(scratch))


@cache
def _read_migrations_once() -> None:
    """Alembic reads Dagster's migrations again for every database (one a run): a third of these tests' time."""
    read, held = ScriptDirectory.from_config, dict[str, ScriptDirectory]()

    def from_config(config: Config) -> ScriptDirectory:
        place = str(config.get_main_option("script_location"))
        if place not in held:
            held[place] = read(config)
        return held[place]

    ScriptDirectory.from_config = from_config


class FlakyTracker(LocalTracker):
    """The embedded tracker, which counts what it is asked and fails where it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, writers=("bob",))
        self.asked: list[str] = []
        self.broken: dict[str, AtelierError] = {}
        """`method` or `method what` -> what it raises."""

    def _count(self, method: str, what: object = "") -> None:
        self.asked.append(method)
        for name in (method, f"{method} {what}"):
            if name in self.broken:
                raise self.broken[name]

    async def repositories(self) -> Sequence[RepoRef]:
        self._count("repositories")
        return await super().repositories()

    async def issues_changed_since(self, repo: RepoRef, cursor: str) -> tuple[Sequence[Issue], str]:
        self._count("issues_changed_since", repo)
        return await super().issues_changed_since(repo, cursor)

    async def comments(self, key: TicketKey) -> Sequence[Comment]:
        self._count("comments", key)
        return await super().comments(key)

    async def upsert_comment(self, key: TicketKey, marker: str, body: str) -> Comment:
        self._count("upsert_comment", key)
        return await super().upsert_comment(key, marker, body)


@dataclass
class StandInForge:
    """Only what the sensors ask a forge for."""

    made: dict[int, list[HumanDecision]] = field(default_factory=dict[int, list[HumanDecision]])
    broken: AtelierError | None = None
    asked: int = 0

    async def decisions(self, repo: RepoRef, number: int) -> Sequence[HumanDecision]:
        self.asked += 1
        if self.broken:
            raise self.broken
        return self.made.get(number, [])


@dataclass
class StandInWorkshops:
    """Only what the sensors ask workshops for."""

    found: dict[str, WorkshopStatus] = field(default_factory=dict[str, WorkshopStatus])
    broken: AtelierError | None = None
    undeletable: dict[str, AtelierError] = field(default_factory=dict[str, AtelierError])

    async def list(self, *, campaign: str = "", ticket: str = "") -> Sequence[WorkshopStatus]:
        if self.broken:
            raise self.broken
        return list(self.found.values())

    async def delete(self, name: str) -> None:
        if name in self.undeletable:
            raise self.undeletable[name]
        self.found.pop(name, None)


_WORLDS: dict[str, Any] = {}
"""Root directory -> the adapter that stands in there: Dagster copies resources, so they cannot carry it."""


class _TrackerOf(TrackerResource):
    def tracker(self) -> Tracker:
        return _WORLDS[f"tracker {self.root}"]


class _ForgeOf(ForgeResource):
    def forge(self) -> Forge:
        return _WORLDS[f"forge {self.root}"]


class _WorkshopsOf(WorkshopsResource):
    def workshops(self) -> Workshops:
        return _WORLDS[f"workshops {self.root}"]


@dataclass
class Ticks:
    """An installation whose sensors tick when a test says so."""

    home: Path
    instance: dg.DagsterInstance
    tracker: FlakyTracker
    forge: StandInForge
    workshops: StandInWorkshops
    settings: dict[str, Any]
    cursors: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    _made: dict[str, dict[str, Any]] = field(default_factory=dict[str, "dict[str, Any]"])
    skipped: str | None = None
    """Why the last tick asked for nothing."""

    # ---- sensors

    def tick(self, name: str) -> list[dg.DagsterRun]:
        """One evaluation; the runs that were launched for it. The cursor moves only if nothing was raised."""
        sensor = repository().get_sensor_def(name)
        context = dg.build_sensor_context(
            instance=self.instance,
            instance_ref=self.instance.get_ref(),
            cursor=self.cursors.get(name),
            repository_def=repository(),
            sensor_name=name,
            resources={key: made for key, made in self.resources().items() if key in sensor.required_resource_keys},
        )
        with warnings.catch_warnings(), context:
            # Dagster calls a deprecated property of its own when one resource holds another.
            warnings.filterwarnings("ignore", message="InitResourceContext.dagster_run", category=DeprecationWarning)
            data = sensor.evaluate_tick(context)
        assert not data.dynamic_partitions_requests
        runs = [run for request in data.run_requests or () if (run := self._launch(name, request))]
        self.cursors[name] = data.cursor
        self.skipped = data.skip_message
        return runs

    def resources(self) -> dict[str, Any]:
        """Those of the definitions, with stand-ins for tracker, forge and workshops."""
        wanted = repr(self.settings)
        if wanted not in self._made:
            self._made[wanted] = self._make_resources()
        return self._made[wanted]

    def _make_resources(self) -> dict[str, Any]:
        made = build_resources(Settings(home=self.home, **self.settings))
        made["tracker"] = _TrackerOf(root=made["tracker"].root)
        made["forge"] = _ForgeOf(root=made["forge"].root)
        workshops: WorkshopsResource = made["workshops"]
        made["workshops"] = _WorkshopsOf(root=workshops.root, agent=made["agent"], llm=made["llm"])
        return made

    def _launch(self, sensor: str, request: dg.RunRequest) -> dg.DagsterRun | None:
        """What the daemon does with a run request: checks it, and creates its run unless its key has one."""
        assert request.job_name
        assert request.partition_key
        assert partitions.is_known(self.instance, request.partition_key), request.partition_key
        job = repository().get_job(request.job_name)
        selection = {asset.to_user_string() for asset in request.asset_selection or ()}
        assert selection
        assert selection <= set(JOBS[request.job_name])
        subset = job.get_subset(asset_selection=frozenset(request.asset_selection or ()))
        assert dg.validate_run_config(subset, request.run_config or {}) is not None
        if request.run_key:
            same = {"dagster/run_key": request.run_key, "dagster/sensor_name": sensor}
            if self.instance.get_runs(dg.RunsFilter(tags=same), limit=1):
                return None
        marks = {"dagster/run_key": request.run_key or "", "dagster/sensor_name": sensor, **request.tags}
        return self.run(request.partition_key, request.job_name, marks, assets=sorted(selection))

    # ---- runs

    def run(
        self, partition: str, job: str = "deliver", marks: Mapping[str, str] | None = None, assets: Sequence[str] = ()
    ) -> dg.DagsterRun:
        """A run that has not ended."""
        return self.instance.add_run(
            dg.DagsterRun(
                job_name=job,
                run_id=str(uuid.uuid4()),
                status=dg.DagsterRunStatus.NOT_STARTED,
                tags={tags.PARTITION: partition, **(marks or {})},
                asset_selection=frozenset(map(dg.AssetKey, assets)) or None,
            )
        )

    def end(self, run: dg.DagsterRun, status: Status = "success", error: str = "") -> dg.DagsterRun:
        """End a run, as its process reports it."""
        if error:
            self.instance.add_run_tags(run.run_id, {tags.ERROR: error})
        event = dg.DagsterEvent(event_type_value=_ENDS[status].value, job_name=run.job_name, message="the end")
        self.instance.report_dagster_event(event, run_id=run.run_id)
        return run

    def ended(self, partition: str, status: Status = "success", job: str = "deliver", error: str = "") -> dg.DagsterRun:
        """A run that has ended."""
        return self.end(self.run(partition, job), status, error)

    # ---- tickets

    def ticket(
        self, number: int = 1, repo: str = "shop", labels: Sequence[str] = ("atelier",), **fields: str
    ) -> TicketKey:
        """Write the ticket of that number: `author`, `state`, `title`, `body`."""
        directory = self.home / "forge" / "demo" / repo
        (directory / "repo.git").mkdir(parents=True, exist_ok=True)
        (directory / "repo.git" / "HEAD").write_text("ref: refs/heads/main\n")  # no git is asked here
        (directory / "tickets").mkdir(exist_ok=True)
        front = {"title": "Sort", "author": "bob", "state": "open", "labels": f"[{', '.join(labels)}]", **fields}
        body = front.pop("body", "Please.")
        head = "\n".join(f"{name}: {value}" for name, value in front.items())
        (directory / "tickets" / f"{number}.md").write_text(f"---\n{head}\n---\n{body}\n")
        return TicketKey(repo=RepoRef(tracker="local", owner="demo", name=repo), number=number)

    def say(self, key: TicketKey, body: str, author: str = "bob") -> None:
        """Comment on a ticket."""
        asyncio.run(self.tracker.add_comment(key, body, author))

    def comments(self, key: TicketKey) -> list[str]:
        """Everything said on a ticket."""
        return [comment.body for comment in asyncio.run(LocalTracker.comments(self.tracker, key))]

    # ---- artifacts

    @property
    def store(self) -> ArtifactStore:
        """What runs have stored."""
        return ArtifactStore(DirectoryStore(self.home / "artifacts"))

    def history(self, key: TicketKey) -> History:
        """What is recorded about a ticket now."""
        return asyncio.run(HistoryReader(self.instance, self.store, key.partition).read(with_runs=True))

    def record(self, artifact: Artifact[Any], **metadata: Any) -> None:
        """One materialization."""
        asyncio.run(self.store.put(artifact))
        self.report(artifact.asset, artifact.ticket, artifact.sha256, **metadata)

    def report(self, asset: str, partition: str, version: str, **metadata: Any) -> None:
        """A materialization that somebody reports from outside of any run."""
        marks = {tags.DATA_VERSION: version} if version else {}
        event = dg.AssetMaterialization(asset_key=asset, partition=partition, metadata=metadata, tags=marks)
        self.instance.report_runless_asset_event(event)

    def replay(self, journey: Journey, key: TicketKey, start: int = 0) -> None:
        """Record what happened in a journey from its `start`th event on, in order, as that of a ticket."""
        partitions.add_tickets(self.instance, [key.partition])
        renamed: dict[str, str] = {}
        happened = sorted([*journey.entries, *journey.runs], key=lambda item: item.seq)
        for position, item in enumerate(happened):
            if not hasattr(item, "artifact"):
                if position >= start:
                    self.ended(key.partition, item.status, item.job or "__ASSET_JOB", item.error)  # type: ignore[union-attr]
                continue
            artifact = _moved(item.artifact, key, renamed)  # type: ignore[union-attr]
            if position >= start:
                self.record(artifact)


def _moved(artifact: Artifact[Any], key: TicketKey, renamed: dict[str, str]) -> Artifact[Any]:
    """The same artifact as another ticket would have made it."""
    value = artifact.value.model_copy(update={"key": key}) if artifact.asset == "ticket" else artifact.value
    moved = artifact.model_copy(
        update={
            "ticket": key.partition,
            "inputs": {name: renamed[sha] for name, sha in artifact.inputs.items()},
            "feedback": {name: renamed.get(sha, sha) for name, sha in artifact.feedback.items()},
            "value": value,
        }
    )
    renamed[artifact.sha256] = moved.sha256
    return moved


@contextmanager
def ticks(**settings: Any) -> Generator[Ticks]:
    """An empty installation; `settings` as in `Settings`."""
    _read_migrations_once()
    home = Path(tempfile.mkdtemp(prefix="atelier-tick-", dir=_SCRATCH))
    try:
        shutil.copytree(_template(), dagster_directory(home))
        directory = asyncio.run(prepare_home(home))  # only the paths in its configuration change
        (home / "forge").mkdir()
        tracker, forge, workshops = FlakyTracker(home / "forge"), StandInForge(), StandInWorkshops()
        _WORLDS[f"tracker {home.resolve() / 'forge'}"] = tracker
        _WORLDS[f"forge {home.resolve() / 'forge'}"] = forge
        _WORLDS[f"workshops {home.resolve() / 'workshops'}"] = workshops
        with dg.DagsterInstance.from_config(str(directory)) as instance:
            yield Ticks(home, instance, tracker, forge, workshops, settings)
    finally:
        for name in [name for name in _WORLDS if str(home.resolve()) in name]:
            del _WORLDS[name]
        shutil.rmtree(home, ignore_errors=True)
