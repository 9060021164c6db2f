"""What a delivery needs in tests: a host repository, workshops without a sandbox, an agent that runs a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atelier_dagster.artifacts import ArtifactStore
from atelier_dagster.delivery import HostRepository
from atelier_dagster.factory.change import WorkshopRecord
from atelier_dagster.ports import (
    AgentAnswer,
    AgentCommand,
    AgentTask,
    Check,
    ExecResult,
    GitRemote,
    RepoSource,
    WorkshopSpec,
)
from tests.support.plain_workshops import PlainWorkshops
from tests.support.repositories import Checkout


@dataclass
class ScriptedAgent:
    """Does what a shell script says; `answer` is what it makes of every ending."""

    script: str = ":"
    answer: AgentAnswer = field(default_factory=lambda: AgentAnswer("done"))

    def command(self, task: AgentTask) -> AgentCommand:
        argv = ("sh", "-c", self.script)
        return AgentCommand(argv, {"AGENT_HOME": task.home}, {"agent/config": b"x"}, task.prompt.encode())

    def read(self, result: ExecResult) -> AgentAnswer:
        return self.answer

    def mounts(self) -> Sequence[tuple[Path, str]]:
        return []

    async def preflight(self) -> Sequence[Check]:
        return []


@dataclass(frozen=True)
class Setting:
    """Everything that a delivery needs."""

    host: HostRepository
    work: Checkout
    workshops: PlainWorkshops
    store: ArtifactStore
    agent: ScriptedAgent
    base: str

    def record(
        self, name: str = "pm-one", start: str | None = None, branch: str = "", **more: object
    ) -> WorkshopRecord:
        """A workshop's record."""
        return WorkshopRecord.model_validate(
            {
                "name": name,
                "task_id": name.removeprefix("pm-"),
                "branch": branch or f"atelier/1-{name.removeprefix('pm-')}",
                "start_commit": self.base if start is None else start,
                "scope": ("src/**",),
                **more,
            }
        )

    def spec(self, record: WorkshopRecord) -> WorkshopSpec:
        """The workshop that a record asks for."""
        source = RepoSource(self.host.path, GitRemote(str(self.work.path)), record.branch, record.start_commit)
        return WorkshopSpec(record.name, source, campaign="c", ticket="local~demo~shop~1")
