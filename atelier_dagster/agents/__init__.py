"""Coding agents: the command that runs one in a workshop, and the reading of its output. No workshop is used here."""

from atelier_dagster.agents.command import CommandAgent
from atelier_dagster.agents.opencode import OpenCode, find_opencode

__all__ = ["CommandAgent", "OpenCode", "find_opencode"]
