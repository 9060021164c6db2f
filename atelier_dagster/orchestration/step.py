"""What every asset of the journey shares: the envelope of its value, gates that yield nothing, typed failures."""

from __future__ import annotations

import functools
import inspect
import time
import typing
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from pydantic import BaseModel

from atelier_dagster.artifacts import ArtifactStore
from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.factory.lineage import ASSETS, Artifact, History
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.orchestration.display import show
from atelier_dagster.orchestration.failures import as_failure, note_error
from atelier_dagster.orchestration.history import run_history
from atelier_dagster.orchestration.partitions import tickets_partitions

OWNERS = ["team:atelier"]
IO_MANAGER = "artifact_io"

GROUPS: Mapping[str, tuple[str, ...]] = {
    "intake": ("ticket",),
    "planning": ("analysis", "plan", "greenfield_spec", "architecture_review", "approved_plan"),
    "collaboration": ("plan_document",),
    "building": ("workshops", "changes", "integration", "diff", "test_report", "tested_diff"),
    "reviewing": ("code_review", "security_review", "ops_review", "review_gate"),
    "delivery": ("pull_request", "approval", "merge", "knowledge", "outcome"),
    "validation": ("qa_report",),
}


def group_of(asset: str) -> str:
    """The stage that an asset belongs to."""
    return next(group for group, assets in GROUPS.items() if asset in assets)


@dataclass(frozen=True)
class Made:
    """What a step made. `attempt`, `round` and `cycle` are inherited from its last input when not given."""

    value: BaseModel
    cycle: int | None = None
    round: int | None = None
    attempt: int | None = None
    feedback: Mapping[str, str] = field(default_factory=dict[str, str])
    final: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Shown in the UI, not hashed: tokens, cost, links."""


def ticket_key(context: dg.AssetExecutionContext) -> TicketKey:
    """The ticket that this run works on."""
    return TicketKey.from_partition(context.partition_key)


async def read_history(context: dg.AssetExecutionContext, store: ArtifactStore) -> History:
    """The ticket's artifacts so far, this run's included."""
    return await run_history(context.instance, store, context.partition_key, context.run.run_id).read()


def envelope(asset: str, partition: str, made: Made, inputs: Mapping[str, Artifact[Any]]) -> Artifact[Any]:
    """Wrap a value with exactly what it was made from."""
    lead = inputs[max(inputs, key=ASSETS.index)] if inputs else None
    return Artifact[type(made.value)](
        asset=asset,
        ticket=partition,
        cycle=made.cycle or (lead.cycle if lead else 1),
        round=made.round or (lead.round if lead else 1),
        attempt=made.attempt or (lead.attempt if lead else 1),
        inputs={name: artifact.sha256 for name, artifact in inputs.items()},
        feedback=dict(made.feedback),
        final=made.final,
        value=made.value,
    )


def as_output(
    context: dg.AssetExecutionContext,
    asset: str,
    made: Made,
    inputs: Mapping[str, Artifact[Any]],
    started: float,
    output_name: str = "result",
) -> dg.Output[Artifact[Any]]:
    """The Dagster output of a step: the artifact, its hash as data version, and what a person wants to see first.

    `output_name` is the asset's own where one step makes several, however few of them were selected.
    """
    artifact = envelope(asset, context.partition_key, made, inputs)
    duration = dg.MetadataValue.text(f"{time.monotonic() - started:.1f} s")
    with warnings.catch_warnings():
        # `data_version` is beta in Dagster, which is pinned: users need not hear of it at every step
        warnings.simplefilter("ignore", dg.BetaWarning)
        return dg.Output(
            artifact,
            output_name=output_name,
            data_version=dg.DataVersion(artifact.sha256),
            metadata={**show(artifact), **made.metadata, "duration": duration},
        )


async def guarded(context: dg.AssetExecutionContext, work: Awaitable[Made | None]) -> Made | None:
    """Run a step's work; a typed error becomes a readable failure whose code routing can match."""
    try:
        return await work
    except AtelierError as error:
        note_error(context.instance, context.run.run_id, error)
        raise as_failure(error) from error


StepFunction = Callable[..., Awaitable["Made | None"]]


def journey_asset(
    *,
    kinds: set[str],
    gate: bool = False,
    watches: tuple[str, ...] = (),
    reads: Mapping[str, str] | None = None,
    priority: int = 0,
) -> Callable[[StepFunction], dg.AssetsDefinition]:
    """An asset of the journey from an async function that is given current artifacts and resources.

    The function's docstring is the description in the UI. A `gate` may return None: nothing is materialized, all
    below it is skipped, and the run stays green. `watches` are upstreams that are not loaded (they may be absent).
    `reads` names the upstream of a parameter where they differ (an asset and a resource may share a name). Of steps
    that could run next, the one with the highest `priority` does.
    """

    def decorate(function: StepFunction) -> dg.AssetsDefinition:
        name = function.__name__
        return dg.asset(
            name=name,
            description=inspect.getdoc(function),
            group_name=group_of(name),
            kinds=kinds,
            owners=OWNERS,
            deps=list(watches),
            ins={parameter: dg.AssetIn(key=dg.AssetKey(asset)) for parameter, asset in (reads or {}).items()},
            partitions_def=tickets_partitions,
            io_manager_key=IO_MANAGER,
            output_required=not gate,
            op_tags={"dagster/priority": str(priority)},
        )(_as_generator(function, reads or {}))

    return decorate


def _as_generator(function: StepFunction, reads: Mapping[str, str]) -> Callable[..., Any]:
    """Only a generator may yield nothing. Dagster reads inputs and resources from the signature: keep `function`'s."""

    async def compute(context: dg.AssetExecutionContext, **given: Any) -> AsyncIterator[dg.Output[Artifact[Any]]]:
        inputs: dict[str, Artifact[Any]] = {
            reads.get(name, name): value for name, value in given.items() if isinstance(value, Artifact)
        }
        started = time.monotonic()
        made = await guarded(context, function(context, **given))
        if made is not None:
            yield as_output(context, function.__name__, made, inputs, started)

    copy_signature(function, compute)
    return compute


def copy_signature(source: Callable[..., Any], target: Callable[..., Any]) -> None:
    """Give `target` the name, docstring and resolved parameter types of `source`, without its return type."""
    functools.update_wrapper(target, source)
    vars(target).pop("__wrapped__")
    _resolve(source, target)


def plain_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Resolve a function's parameter types in place and drop its return type, which Dagster would misread."""
    _resolve(function, function)
    return function


def _resolve(source: Callable[..., Any], target: Callable[..., Any]) -> None:
    hints = typing.get_type_hints(source)
    hints.pop("return", None)
    signature = inspect.signature(source)
    parameters = [p.replace(annotation=hints[p.name]) for p in signature.parameters.values()]
    target.__annotations__ = hints
    vars(target)["__signature__"] = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
