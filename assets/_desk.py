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
        **token_metadata(usage.tokens_in, usage.tokens_out),
        "call records": dg.MetadataValue.json(list(usage.records)),
        **cost,
    }


def token_metadata(tokens_in: int, tokens_out: int) -> dict[str, Any]:
    """Tokens as the UI shows them, and as the ticket's spend is summed from. Nothing when none were used."""
    if not tokens_in and not tokens_out:
        return {}
    shown = f"{tokens_in} in, {tokens_out} out"
    return {"tokens": shown, "tokens in": tokens_in, "tokens out": tokens_out}
