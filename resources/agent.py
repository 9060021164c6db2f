"""The coding agent as a resource."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import dagster as dg

from atelier_dagster.agents import CommandAgent, OpenCode
from atelier_dagster.ports import Agent


class AgentResource(dg.ConfigurableResource[Any]):
    """OpenCode, or any command that reads its prompt from stdin; it runs inside a workshop."""

    kind: Literal["opencode", "command"] = "opencode"
    binary: str = ""
    command: list[str] = []
    timeout: float = 2700.0
    """Seconds for one delivery."""
    test_timeout: float = 1800.0
    """Seconds for the repository's tests."""
    qa_timeout: float = 1800.0

    def agent(self) -> Agent:
        """The agent."""
        if self.kind == "command":
            return CommandAgent(tuple(self.command))
        return OpenCode(Path(self.binary) if self.binary else None)
