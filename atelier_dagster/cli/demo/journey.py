"""One ticket's journey as a spectator sees it: what was made when, what runs, what it waits for. No rendering here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atelier_dagster.factory.lineage import ASSETS, History
from atelier_dagster.factory.routing import DoneStep, RunStep, WaitKind, WaitStep
from atelier_dagster.factory.ticket import TicketKey

_DECISIONS = {WaitKind.APPROVAL, WaitKind.PLAN_REVIEW}


@dataclass(frozen=True)
class Made:
    """One materialization."""

    asset: str
    sha256: str
    run_id: str
    at: float
    """Seconds since the epoch."""
    cycle: int
    round: int
    attempt: int
    verdict: str = ""
    remark: str = ""
    """What a person wants to know besides the verdict: the first objection, the number of tasks, ..."""
    duration: str = ""
    tokens: int = 0
    cost_usd: float | None = None

    @property
    def which(self) -> str:
        """`cycle.round.attempt`."""
        return f"{self.cycle}.{self.round}.{self.attempt}"


@dataclass(frozen=True)
class RunSeen:
    """A run of the ticket, in the state in which it was last seen."""

    run_id: str
    job: str
    status: str


@dataclass
class Journey:
    """A ticket on its way."""

    name: str
    key: TicketKey
    title: str = ""
    made: list[Made] = field(default_factory=list[Made])
    runs: dict[str, RunSeen] = field(default_factory=dict[str, RunSeen])
    history: History | None = None
    step: RunStep | WaitStep | DoneStep | None = None
    """What follows, as far as it is known; None while something runs."""
    decided: set[str] = field(default_factory=set[str])
    """Hashes of the pull requests and plans that this demo has decided about."""

    @property
    def is_running(self) -> bool:
        """Whether a run is queued or going on."""
        return any(run.status == "active" for run in self.runs.values())

    @property
    def ended(self) -> bool:
        """Whether the cycle's outcome is recorded."""
        return isinstance(self.step, DoneStep)

    @property
    def stuck(self) -> str:
        """Why only a person, and not a decision, can help; "" when that is not so."""
        if isinstance(self.step, WaitStep) and self.step.kind not in _DECISIONS | {WaitKind.NOT_STARTED}:
            return f"{self.step.kind.value}: {self.step.reason}"
        return ""

    @property
    def subject(self) -> tuple[str, str] | None:
        """Asset and hash of what waits for a decision that was not given yet."""
        if not isinstance(self.step, WaitStep) or self.step.kind not in _DECISIONS or self.history is None:
            return None
        asset = "plan" if self.step.kind is WaitKind.PLAN_REVIEW else "pull_request"
        entry = self.history.current(asset)
        if entry is None or entry.sha256 in self.decided:
            return None
        return asset, entry.sha256

    @property
    def failed_runs(self) -> Sequence[RunSeen]:
        """Runs that failed, in the order in which they were seen."""
        return [run for run in self.runs.values() if run.status == "failure"]

    @property
    def tokens(self) -> int:
        """Of every model call, both ways."""
        return sum(made.tokens for made in self.made)

    @property
    def cost_usd(self) -> float | None:
        """Of every model call that told its cost."""
        told = [made.cost_usd for made in self.made if made.cost_usd is not None]
        return sum(told) if told else None

    def latest(self) -> Mapping[str, Made]:
        """Asset -> its last materialization, in the journey's order."""
        last = {made.asset: made for made in self.made}
        return {asset: last[asset] for asset in ASSETS if asset in last}

    def value(self, asset: str) -> Any:
        """Value of the current artifact, or None."""
        entry = self.history.current(asset) if self.history else None
        return entry.artifact.value if entry else None

    def in_words(self) -> str:
        """What it is doing now."""
        if isinstance(self.step, DoneStep):
            return f"ended: {self.step.ending.value}"
        if self.stuck:
            return f"stands still: {self.stuck}"
        active = next((run for run in reversed(self.runs.values()) if run.status == "active"), None)
        if active:
            return f"{active.job} runs"
        if isinstance(self.step, WaitStep):
            return "waits for a decision" if self.step.kind in _DECISIONS else "waits to be taken in"
        if isinstance(self.step, RunStep):
            wait = f" after {self.step.delay_seconds:.0f} s" if self.step.delay_seconds else ""
            return f"{self.step.job} follows{wait}: {self.step.reason}"
        return "waits to be taken in"
