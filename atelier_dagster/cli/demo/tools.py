"""The agent and workshops of a demo, made by the composition root: checked before, cleaned up after."""

from __future__ import annotations

from typing import Any

import dagster as dg

from atelier_dagster.definitions import build_resources
from atelier_dagster.ports import Agent, Workshops
from atelier_dagster.settings import Settings


def agent(settings: Settings) -> Agent:
    """The coding agent."""
    return _resources(settings).agent.agent()


def workshops(settings: Settings) -> Workshops:
    """The workshops."""
    return _resources(settings).workshops.workshops()


def _resources(settings: Settings) -> Any:
    """Resources with their secrets looked up."""
    wanted = {name: made for name, made in build_resources(settings).items() if name in ("agent", "workshops")}
    with dg.build_resources(wanted) as resources:
        return resources
