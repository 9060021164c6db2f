"""The artifact envelope, the graph of assets, and what counts as current. Not here: where artifacts are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError, field_validator

from atelier_dagster.factory.approval import Approval
from atelier_dagster.factory.change import (
    Campaign,
    Changes,
    DiffStat,
    Integration,
    Knowledge,
    Merge,
    Outcome,
    PullRequest,
    QaReport,
    ReviewGate,
    TestedDiff,
    TestReport,
)
from atelier_dagster.factory.errors import CorruptArtifact, InvalidInput
from atelier_dagster.factory.plan import ApprovedPlan, ArchitectureReview, GreenfieldSpec, Plan, PlanDocument
from atelier_dagster.factory.ticket import Analysis, Frozen, Ticket
from atelier_dagster.factory.verdict import Review

T = TypeVar("T", bound=BaseModel)
V = TypeVar("V", bound=BaseModel)

_REVIEW_INPUTS = ("ticket", "analysis", "diff", "tested_diff")

UPSTREAM: Mapping[str, tuple[str, ...]] = {
    "ticket": (),
    "analysis": ("ticket",),
    "plan": ("ticket", "analysis"),
    "greenfield_spec": ("ticket", "analysis", "plan"),
    "architecture_review": ("ticket", "analysis", "plan", "greenfield_spec"),
    "plan_document": ("plan", "architecture_review"),
    "approved_plan": ("plan", "greenfield_spec", "architecture_review", "plan_document"),
    "workshops": ("ticket", "approved_plan"),
    "changes": ("ticket", "analysis", "approved_plan", "workshops"),
    "integration": ("ticket", "workshops", "changes"),
    "diff": ("integration",),
    "test_report": ("workshops", "integration"),
    "tested_diff": ("diff", "test_report"),
    "code_review": _REVIEW_INPUTS,
    "security_review": _REVIEW_INPUTS,
    "ops_review": _REVIEW_INPUTS,
    "review_gate": (
        "approved_plan",
        "changes",
        "integration",
        "diff",
        "test_report",
        "tested_diff",
        "code_review",
        "security_review",
        "ops_review",
    ),
    "pull_request": ("ticket", "analysis", "integration", "diff", "test_report", "review_gate"),
    "approval": ("pull_request",),
    "merge": ("ticket", "pull_request", "approval"),
    "knowledge": ("ticket", "analysis", "diff", "merge"),
    "qa_report": ("ticket", "analysis", "merge"),
    "outcome": ("ticket",),
}
"""Asset -> the assets that it reads: the graph's edges, and the inputs that decide about currency."""

ASSETS: tuple[str, ...] = tuple(UPSTREAM)
"""Every asset in the order of the journey; whatever an asset reads comes before it."""

JOBS: Mapping[str, tuple[str, ...]] = {
    "deliver": ASSETS[: ASSETS.index("approval")],
    "release": ("approval", "merge", "knowledge", "qa_report"),
    "close": ("outcome",),
}
"""Job -> its assets, in order."""

VALUE_TYPES: Mapping[str, type[BaseModel]] = {
    "ticket": Ticket,
    "analysis": Analysis,
    "plan": Plan,
    "greenfield_spec": GreenfieldSpec,
    "architecture_review": ArchitectureReview,
    "plan_document": PlanDocument,
    "approved_plan": ApprovedPlan,
    "workshops": Campaign,
    "changes": Changes,
    "integration": Integration,
    "diff": DiffStat,
    "test_report": TestReport,
    "tested_diff": TestedDiff,
    "code_review": Review,
    "security_review": Review,
    "ops_review": Review,
    "review_gate": ReviewGate,
    "pull_request": PullRequest,
    "approval": Approval,
    "merge": Merge,
    "knowledge": Knowledge,
    "qa_report": QaReport,
    "outcome": Outcome,
}
"""Asset -> the model of its value."""


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spare white space: the same value always gives the same bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_hex(data: bytes) -> str:
    """Lower-case hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


class Artifact(BaseModel, Generic[T]):
    """One decision, with exactly what it was made from.

    The hash covers decisions and content, never durations, tokens, cost or times: those are metadata.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    asset: str
    ticket: str
    """Partition key."""
    cycle: int = Field(ge=1)
    round: int = Field(default=1, ge=1)
    attempt: int = Field(default=1, ge=1)
    inputs: dict[str, str] = Field(default_factory=dict)
    """Upstream asset -> sha256 of the artifact that was read. These decide about currency."""
    feedback: dict[str, str] = Field(default_factory=dict)
    """Asset -> sha256 of an earlier, refused artifact that this one answers. Recorded; no part of currency."""
    final: bool = False
    """Records an act that cannot be undone (a merge, an outcome): current for the rest of its cycle."""
    value: T

    def canonical(self) -> bytes:
        """The bytes that are stored and hashed."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def sha256(self) -> str:
        """Hash of `canonical()`: the artifact's name and Dagster data version."""
        return sha256_hex(self.canonical())


def parse_artifact(asset: str, data: bytes) -> Artifact[Any]:
    """The artifact of `asset` in stored bytes, its value typed by `VALUE_TYPES`.

    Raises `InvalidInput` (no such asset) and `CorruptArtifact` (the bytes are no artifact of it, or not canonical).
    """
    if asset not in VALUE_TYPES:
        raise InvalidInput(f"there is no asset {asset!r}", fix=f"one of {', '.join(ASSETS)}")
    envelope = cast("type[Artifact[Any]]", Artifact[VALUE_TYPES[asset]])
    try:
        artifact = envelope.model_validate_json(data)
    except ValidationError as error:
        reason = f"{error.error_count()} errors, the first at {error.errors()[0]['loc']}: {error.errors()[0]['msg']}"
        raise CorruptArtifact(
            f"the stored {asset} cannot be read: {reason}", fix=f"materialize {asset} again"
        ) from error
    if artifact.asset != asset or artifact.canonical() != data:
        raise CorruptArtifact(f"the stored {asset} is not the canonical form of one", fix=f"materialize {asset} again")
    return artifact


class Entry(Frozen):
    """One materialization. `seq` orders entries and ended runs of a ticket by when they were stored."""

    asset: str
    sha256: str
    artifact: SkipValidation[Artifact[Any]]
    """As it was parsed, typed by its value: validating it again would make an untyped copy."""
    seq: int

    @classmethod
    def of(cls, artifact: Artifact[Any], seq: int) -> Entry:
        """The entry of an artifact, under its own hash."""
        return cls(asset=artifact.asset, sha256=artifact.sha256, artifact=artifact, seq=seq)


class EndedRun(Frozen):
    """A run that has ended. `job` is "" for one that somebody started from a selection of assets."""

    run_id: str
    job: str
    status: Literal["success", "failure", "cancelled"]
    seq: int
    error: str = ""
    """What made it fail; holds the error's stable code."""


class Standing(Frozen):
    """Where an asset stands: the entry that may count, and why it does not ("" when it is current)."""

    entry: Entry | None
    stale: str = ""
    remake: str = ""
    """The first asset upstream that must be materialized for this one to become current."""


class History(Frozen):
    """Everything recorded about one ticket. Artifacts count only if they are current.

    An artifact is current if it is the latest of its asset, belongs to the present cycle, and was made from the
    current artifacts, all the way up. Acts that cannot be undone are the exception: a `final` artifact stands for the
    rest of its cycle, and **once a merge is final, everything that it was made from is frozen with it**, so whatever
    is materialized again afterwards neither reopens the journey nor takes the ground from under QA.
    """

    ticket: str
    """Partition key."""
    entries: tuple[Entry, ...] = ()
    runs: tuple[EndedRun, ...] = ()

    @field_validator("entries", "runs")
    @classmethod
    def _in_order(cls, items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(sorted(items, key=lambda item: item.seq))

    @cached_property
    def cycle(self) -> int:
        """Cycle of the latest ticket artifact; 0 when there is none."""
        ticket = self.latest("ticket")
        return ticket.artifact.cycle if ticket else 0

    def latest(self, asset: str) -> Entry | None:
        """The last materialization, current or not."""
        return self.latest_entries.get(asset)

    def current(self, asset: str) -> Entry | None:
        """The artifact that counts, if there is one. Raises `InvalidInput` for an unknown asset."""
        standing = self._standing_of(asset)
        return None if standing.stale else standing.entry

    def current_assets(self) -> tuple[str, ...]:
        """Assets that are current, in order of the journey."""
        return tuple(asset for asset in ASSETS if not self.standings[asset].stale)

    def stale_reason(self, asset: str) -> str | None:
        """None when `asset` is current; else what is missing or differs, and what to materialize."""
        standing = self._standing_of(asset)
        return f"{standing.stale}; materialize {standing.remake}" if standing.stale else None

    def value(self, asset: str, kind: type[V]) -> V | None:
        """Value of the current artifact, checked to be a `kind`."""
        entry = self.current(asset)
        if entry is None:
            return None
        assert isinstance(entry.artifact.value, kind)
        return entry.artifact.value

    def all(self, asset: str, cycle: int | None = None) -> tuple[Entry, ...]:
        """Every materialization, oldest first, of one cycle or of all."""
        return tuple(e for e in self.entries if e.asset == asset and cycle in (None, e.artifact.cycle))

    def find(self, asset: str, sha256: str) -> Entry | None:
        """The entry of that hash, current or not."""
        return self.by_hash.get((asset, sha256))

    @cached_property
    def latest_entries(self) -> Mapping[str, Entry]:
        """Asset -> its last materialization."""
        return {entry.asset: entry for entry in self.entries}

    @cached_property
    def by_hash(self) -> Mapping[tuple[str, str], Entry]:
        """(asset, sha256) -> its last materialization."""
        return {(entry.asset, entry.sha256): entry for entry in self.entries}

    @cached_property
    def standings(self) -> Mapping[str, Standing]:
        """Where every asset stands. `ASSETS` has inputs first, so one pass is enough."""
        settled = self._settled()
        standings: dict[str, Standing] = {}
        for asset in ASSETS:
            if asset in settled:
                standings[asset] = Standing(entry=settled[asset])
            else:
                standings[asset] = self._judge(asset, standings)
        return standings

    def _standing_of(self, asset: str) -> Standing:
        if asset not in UPSTREAM:
            raise InvalidInput(f"there is no asset {asset!r}", fix=f"one of {', '.join(ASSETS)}")
        return self.standings[asset]

    def _final(self, asset: str) -> Entry | None:
        finals = [entry for entry in self.all(asset, self.cycle) if entry.artifact.final]
        return finals[-1] if finals else None

    def _settled(self) -> dict[str, Entry]:
        """What stands whatever happens upstream: an outcome, a merge, and all that the merge was made from."""
        settled = {asset: final for asset in ("merge", "outcome") if (final := self._final(asset))}
        walk = [settled["merge"]] if "merge" in settled else []
        for entry in walk:
            for upstream, sha256 in entry.artifact.inputs.items():
                found = self.find(upstream, sha256)
                if found and upstream not in settled and found.artifact.cycle == self.cycle:
                    settled[upstream] = found
                    walk.append(found)
        return settled

    def _judge(self, asset: str, standings: Mapping[str, Standing]) -> Standing:
        entry = self.latest(asset)
        if entry is None:
            return self._stale(asset, None, f"{asset} has not been materialized", standings)
        if entry.artifact.cycle != self.cycle:
            reason = f"{asset} belongs to cycle {entry.artifact.cycle}, the present one is {self.cycle}"
            return self._stale(asset, entry, reason, standings)
        for upstream in UPSTREAM[asset]:
            if standings[upstream].stale:
                return self._stale(asset, entry, f"{asset} rests on a stale {upstream}", standings)
            read, now = entry.artifact.inputs.get(upstream, "none"), standings[upstream].entry
            if now and read != now.sha256:
                reason = f"{asset} was made from {upstream} {read[:12]}, the current one is {now.sha256[:12]}"
                return self._stale(asset, entry, reason, standings)
        return Standing(entry=entry)

    @staticmethod
    def _stale(asset: str, entry: Entry | None, reason: str, standings: Mapping[str, Standing]) -> Standing:
        above = [standings[upstream] for upstream in UPSTREAM[asset] if standings[upstream].stale]
        if not above:
            return Standing(entry=entry, stale=reason, remake=asset)
        cause = above[0].stale.rpartition(": ")[2]
        return Standing(entry=entry, stale=f"{reason}: {cause}", remake=above[0].remake)
