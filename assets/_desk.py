"""What the steps that ask a model share: the consultant for a step, and its usage as metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from atelier_dagster.delivery.consult import Consultant, Usage
from atelier_dagster.factory.lineage import Artifact, History
from resources.artifacts import ArtifactsResource
from resources.llm import LlmResource


def generation(history: History, asset: str, inputs: Mapping[str, Artifact[Any]]) -> int:
    """How often an asset has been materialized from exactly these inputs."""
    hashes = {name: artifact.sha256 for name, artifact in inputs.items()}
    return sum(1 for entry in history.all(asset) if entry.artifact.inputs == hashes)


def consultant(
    context: dg.AssetExecutionContext,
    llm: LlmResource,
    artifacts: ArtifactsResource,
    history: History,
    asset: str,
    inputs: Mapping[str, Artifact[Any]],
) -> Consultant:
    """Someone to ask on behalf of a step."""
    made = generation(history, asset, inputs)
    return Consultant(llm.gateway(), artifacts.objects(), context.partition_key, made)


def usage_metadata(usage: Usage) -> dict[str, Any]:
    """Tokens and cost as the UI shows them. Nothing when no model was asked."""
    if not usage.calls:
        return {}
    cost = {} if usage.cost_usd is None else {"cost (USD)": dg.MetadataValue.float(usage.cost_usd)}
    return {
        "model": usage.model,
        "model calls": usage.calls,
        "tokens": f"{usage.tokens_in} in, {usage.tokens_out} out",
        "tokens in": usage.tokens_in,
        "tokens out": usage.tokens_out,
        "call records": dg.MetadataValue.json(list(usage.records)),
        **cost,
    }
