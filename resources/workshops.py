"""Workshops as a resource."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from atelier_dagster.ports import Resources, Workshops
from atelier_dagster.workshops import LocalWorkshops
from resources.agent import AgentResource
from resources.llm import LlmResource


class WorkshopsResource(dg.ConfigurableResource[Any]):
    """The embedded workshops: sandboxed processes on this machine."""

    root: str
    agent: AgentResource
    llm: LlmResource
    unsafe: bool = False
    """Run without a sandbox. Never with tickets that strangers can write."""
    egress: list[str] = []
    memory_mib: int = 4096
    processes: int = 512
    disk_mib: int = 8192
    qa_devcontainer: str = ""

    def workshops(self) -> Workshops:
        """A client."""
        return LocalWorkshops(
            Path(self.root),
            mounts=self.agent.agent().mounts(),
            upstream=self.llm.gateway().workshop_upstream,
            unsafe=self.unsafe,
        )

    def bounds(self) -> Resources:
        """Bounds of each workshop."""
        return Resources(memory_mib=self.memory_mib, processes=self.processes, disk_mib=self.disk_mib)
