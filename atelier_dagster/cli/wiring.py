"""The configured resources, as the composition root makes them, with their secrets looked up. Imports Dagster."""

from __future__ import annotations

import warnings
from typing import Any

import dagster as dg

from atelier_dagster.definitions import build_resources
from atelier_dagster.settings import Settings

ADAPTERS = ("tracker", "forge", "workshops", "agent", "llm", "artifacts", "knowledge")


def configured_resources(settings: Settings, names: tuple[str, ...] = ADAPTERS) -> Any:
    """An object with one attribute a resource."""
    wanted = {name: made for name, made in build_resources(settings).items() if name in names}
    with warnings.catch_warnings():
        # Dagster calls a deprecated property of its own when one resource holds another.
        warnings.filterwarnings("ignore", message="InitResourceContext.dagster_run", category=DeprecationWarning)
        with dg.build_resources(wanted) as resources:
            return resources
