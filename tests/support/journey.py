"""A journey without Dagster: a history that grows by what routing asks for, and by what people and accidents do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from pydantic import BaseModel

from atelier_dagster.factory.approval import (
    Action,
    Approval,
    DecisionSource,
    HumanDecision,
    equivalent_heads,
    judge,
)
from atelier_dagster.factory.change import (
    Campaign,
    Changes,
    DiffStat,
    Ending,
    Integration,
    Knowledge,
    Merge,
    ObjectRef,
    Outcome,
    PullRequest,
    QaReport,
    RefusalKind,
    ReviewGate,
    TaskChange,
    TestedDiff,
    TestReport,
    TestStatus,
    WorkshopRecord,
)
from atelier_dagster.factory.errors import AtelierError, NothingChanged, StaleInput, Unavailable
from atelier_dagster.factory.lineage import ASSETS, JOBS, UPSTREAM, Artifact, EndedRun, Entry, History
from atelier_dagster.factory.plan import (
    ApprovedPlan,
    ArchitectureReview,
    Finding,
    FindingKind,
    GreenfieldSpec,
    Plan,
    PlanDocument,
    SubTask,
)
from atelier_dagster.factory.routing import (
    DoneStep,
    Policy,
    RunStep,
    WaitStep,
    architecture_gate,
    building_start,
    next_step,
    planning_start,
    review_gate_ruling,
    tests_gate,
)
from atelier_dagster.factory.ticket import Analysis, RepoRef, Ticket, TicketKey
from atelier_dagster.factory.verdict import Decision, QaDecision, QaVerdict, Review, ReviewVerdict

KEY = TicketKey(repo=RepoRef(tracker="local", owner="demo", name="shop"), number=1)
APPROVERS = frozenset({"alice"})
BOT = "atelier-bot"
AFTER_CAMPAIGN = ASSETS[ASSETS.index("changes") : ASSETS.index("knowledge")]


def digest(*parts: object) -> str:
    """40 hexadecimal characters that stand for a commit."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:40]


def approve() -> ReviewVerdict:
    return ReviewVerdict(verdict=Decision.APPROVE)


def refuse(*comments: str) -> ReviewVerdict:
    return ReviewVerdict(verdict=Decision.REQUEST_CHANGES, comments=comments or ("mend it",))


@dataclass
class Said:
    """What outsiders answer next; a test or the chaos below changes it."""

    architect: ReviewVerdict = field(default_factory=approve)
    findings: bool = False
    tests: TestStatus = TestStatus.PASSED
    code: ReviewVerdict = field(default_factory=approve)
    security: ReviewVerdict = field(default_factory=approve)
    ops: ReviewVerdict = field(default_factory=approve)
    nothing_changed: bool = False
    conflicts: tuple[str, ...] = ()
    plan_approved: bool = False
    forge_refuses: bool = False
    base_moves_before_merge: bool = False
    head_now: str = ""
    body: str = "please"
    wording: str = ""
    """Changes the wording of what a model says, and nothing else."""


@dataclass
class Merged:
    """A merge as it happened."""

    approval: Approval
    pull_request: PullRequest
    history: History


class Journey:
    """The outside world of one ticket, and its history."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.said = Said()
        self.entries: list[Entry] = []
        self.runs: list[EndedRun] = []
        self.decision: HumanDecision | None = None
        self.base = digest("base", 0)
        self.cycle = 1
        self.seq = 0
        self.merges: list[Merged] = []
        self.crash_at: Callable[[str], bool] = lambda _: False
        self._bases = 0
        self._history: History | None = None
        self._size = (0, 0)

    # ---- what is asked

    @property
    def history(self) -> History:
        size = (len(self.entries), len(self.runs))
        if self._history is None or self._size != size:
            self._size = size
            self._history = History(ticket=KEY.partition, entries=tuple(self.entries), runs=tuple(self.runs))
        return self._history

    def step(self) -> RunStep | WaitStep | DoneStep:
        return next_step(self.history, self.policy)

    def current(self, asset: str) -> Any:
        entry = self.history.current(asset)
        assert entry, self.history.stale_reason(asset)
        return entry.artifact.value

    # ---- what happens

    def move_base(self) -> None:
        self._bases += 1
        self.base = digest("base", self._bases)

    def decide(self, action: Action, *, head: str | None = None, actor: str = "alice") -> None:
        """A human decides; `head` defaults to the present head. Follow with `release()`."""
        named = self.current("pull_request").head if head is None else head
        self.decision = HumanDecision(
            source=DecisionSource.COMMENT, id=str(self._tick()), actor=actor, action=action, head=named, reason="so"
        )

    def release(self) -> EndedRun:
        return self.run(JOBS["release"], job="release")

    def follow(self) -> RunStep | WaitStep | DoneStep:
        """Run what routing asks for until it waits or is done."""
        for _ in range(100):
            step = self.step()
            if not isinstance(step, RunStep):
                return step
            self.run(step.assets, job=step.job)
        raise AssertionError("routing does not come to rest")

    def start(self) -> RunStep | WaitStep | DoneStep:
        self.run(JOBS["deliver"], job="deliver")
        return self.follow()

    def run(self, assets: tuple[str, ...], job: str = "") -> EndedRun:
        """A run: in order, until something fails or a gate stays closed."""
        status: Literal["success", "failure", "cancelled"] = "success"
        error = ""
        try:
            for asset in assets:
                if self.crash_at(asset):
                    raise Unavailable(f"killed before {asset}")
                if not self.materialize(asset):
                    break
                if asset == "merge" and not self.current("merge").merged:
                    break
                if self.crash_at(f"after {asset}"):
                    raise Unavailable(f"killed after {asset}")
        except AtelierError as failure:
            status, error = "failure", str(failure)
        return self.end(status, error, job)

    def end(self, status: Literal["success", "failure", "cancelled"], error: str = "", job: str = "") -> EndedRun:
        run = EndedRun(run_id=f"run{self._tick()}", job=job, status=status, seq=self._tick(), error=error)
        self.runs.append(run)
        return run

    def materialize(self, asset: str, *, by_hand: BaseModel | None = None) -> bool:
        """One asset; False when its gate stays closed. `by_hand` records a given value."""
        history = self.history
        inputs: dict[str, str] = {}
        for upstream in UPSTREAM[asset]:
            entry = history.current(upstream)
            if entry is None:
                raise StaleInput(history.stale_reason(upstream) or "", fix="materialize it")
            inputs[upstream] = entry.sha256
        value, numbers = (by_hand, self._numbers(asset)) if by_hand else self._made(asset, history)
        if value is None:
            return False
        final = asset == "outcome" or (isinstance(value, Merge) and value.merged)
        artifact: Artifact[Any] = Artifact(
            asset=asset, ticket=KEY.partition, cycle=self.cycle, inputs=inputs, final=final, value=value, **numbers
        )
        self.entries.append(Entry.of(artifact, self._tick()))
        return True

    # ---- how each asset is made

    def _tick(self) -> int:
        self.seq += 1
        return self.seq

    def _numbers(self, asset: str) -> dict[str, Any]:
        if asset in AFTER_CAMPAIGN and (campaign := self.history.value("workshops", Campaign)):
            return {"round": campaign.round, "attempt": campaign.attempt}
        return {}

    def _made(self, asset: str, history: History) -> tuple[BaseModel | None, dict[str, Any]]:
        if asset == "plan":
            start = planning_start(history)
            return self._plan(start.objections), {"attempt": start.attempt, "feedback": start.feedback}
        if asset == "workshops":
            begin = building_start(history)
            record = WorkshopRecord(name="pm-1", task_id="t1", branch="b", start_commit=self.base, scope=("**",))
            campaign = Campaign(
                id="c",
                round=begin.round,
                attempt=begin.attempt,
                rework=begin.rework,
                workshops=(record,),
                feedback=begin.feedback_texts,
            )
            return campaign, {"round": begin.round, "attempt": begin.attempt, "feedback": begin.feedback}
        make: Callable[[History], BaseModel | None] = getattr(self, f"_make_{asset}")
        return make(history), self._numbers(asset)

    def _make_ticket(self, _: History) -> Ticket:
        base = self.base
        return Ticket(key=KEY, title="A shop", body=self.said.body, author="bob", base_branch="trunk", base_commit=base)

    def _make_analysis(self, _: History) -> Analysis:
        return Analysis(job_story=f"As bob {self.said.wording}", criteria=("one", "two"))

    def _plan(self, objections: tuple[str, ...]) -> Plan:
        findings = (Finding(kind=FindingKind.OVERLAP, message="a and b overlap"),) if self.said.findings else ()
        task = SubTask(id="t1", title="all", scope=("**",))
        return Plan(tasks=(task,), findings=findings, answered=objections)

    def _make_greenfield_spec(self, _: History) -> GreenfieldSpec:
        return GreenfieldSpec(applies=False)

    def _make_architecture_review(self, _: History) -> ArchitectureReview:
        return ArchitectureReview(verdict=self._worded(self.said.architect))

    def _worded(self, verdict: ReviewVerdict) -> ReviewVerdict:
        if not (verdict.comments and self.said.wording):
            return verdict
        return verdict.model_copy(update={"comments": (*verdict.comments, self.said.wording)})

    def _make_plan_document(self, _: History) -> PlanDocument:
        return PlanDocument(applies=False)

    def _make_approved_plan(self, history: History) -> ApprovedPlan | None:
        ruling = architecture_gate(history, self.policy)
        if not ruling.open or (self.policy.plan_review == "human" and not self.said.plan_approved):
            return None
        spec = GreenfieldSpec(applies=False)
        plan = self.current("plan")
        return ApprovedPlan(plan=plan, spec=spec, overridden=ruling.overridden, concerns=ruling.concerns)

    def _make_changes(self, history: History) -> Changes:
        workshops = history.current("workshops")
        assert workshops
        head = digest("change", workshops.sha256)
        task = TaskChange(
            task_id="t1", workshop="pm-1", branch="b", attempt_id=workshops.sha256[:8], base=self.base, head=head
        )
        return Changes(tasks=(task,))

    def _make_integration(self, _: History) -> Integration:
        work = self.current("changes").tasks[0].head
        head = digest("integration", self.base, work, self.said.head_now)
        self.said.head_now = ""
        return Integration(branch="b", base=self.base, head=head, conflicts=self.said.conflicts)

    def _make_diff(self, _: History) -> DiffStat:
        if self.said.nothing_changed:
            raise NothingChanged("the change is empty", fix="say more")
        integration = self.current("integration")
        text = hashlib.sha256(self.current("changes").tasks[0].head.encode()).hexdigest()
        ref = ObjectRef(sha256=text, size=10)
        return DiffStat(base=integration.base, head=integration.head, paths=("a.py",), text=ref, files=1)

    def _make_test_report(self, _: History) -> TestReport:
        failed = self.said.tests is TestStatus.FAILED
        return TestReport(
            status=self.said.tests,
            head=self.current("integration").head,
            exit_code=1 if failed else 0,
            output_tail=f"boom {self.said.wording}" if failed else "",
        )

    def _make_tested_diff(self, history: History) -> TestedDiff | None:
        ruling = tests_gate(history, self.policy)
        head = self.current("integration").head
        return TestedDiff(head=head, overridden=ruling.overridden, concerns=ruling.concerns) if ruling.open else None

    def _make_code_review(self, _: History) -> Review:
        return Review(role="code", triggered=True, verdict=self._worded(self.said.code))

    def _make_security_review(self, _: History) -> Review:
        return Review(role="security", triggered=True, verdict=self._worded(self.said.security))

    def _make_ops_review(self, _: History) -> Review:
        return Review(role="ops", triggered=True, verdict=self._worded(self.said.ops))

    def _make_review_gate(self, history: History) -> ReviewGate | None:
        ruling = review_gate_ruling(history, self.policy)
        head = self.current("integration").head
        return ReviewGate(head=head, overridden=ruling.overridden, concerns=ruling.concerns) if ruling.open else None

    def _make_pull_request(self, _: History) -> PullRequest:
        integration = self.current("integration")
        return PullRequest(
            number=1,
            url="u",
            title="A shop",
            body="",
            head=integration.head,
            base=integration.base,
            branch="b",
            base_branch="trunk",
            changed_files=1,
            diff_sha256=self.current("diff").text.sha256,
            concerns=self.current("review_gate").concerns,
        )

    def _make_approval(self, history: History) -> Approval:
        if self.decision is None:
            raise StaleInput("nobody decided", fix="decide")
        opened = self.current("pull_request")
        return judge(
            self.decision,
            opened,
            approvers=APPROVERS,
            bot=BOT,
            equivalent_heads=equivalent_heads(history),
            base=self.base,
            base_moved=opened.base != self.base,
            allow_ui=False,
            head_now=self.said.head_now,
        )

    def _make_merge(self, history: History) -> Merge | None:
        approval, opened = self.current("approval"), self.current("pull_request")
        if not approval.counts or approval.decision.action is not Action.APPROVE or approval.base_moved:
            return None
        if any(merged.pull_request.head == opened.head for merged in self.merges):
            return Merge(merged=True, commit=digest("merge", opened.head), head=opened.head)
        if self.said.base_moves_before_merge:
            self.said.base_moves_before_merge = False
            self.move_base()
        if opened.base != self.base:
            return Merge(merged=False, head=opened.head, refusal=RefusalKind.BASE_MOVED)
        if self.said.forge_refuses:
            return Merge(merged=False, head=opened.head, refusal=RefusalKind.FORGE, reason="protected")
        self.merges.append(Merged(approval, opened, history))
        return Merge(merged=True, commit=digest("merge", opened.head), head=opened.head)

    def _make_knowledge(self, _: History) -> Knowledge:
        return Knowledge(indexed=True)

    def _make_qa_report(self, _: History) -> QaReport:
        return QaReport(commit=self.current("merge").commit, verdict=QaVerdict(verdict=QaDecision.PASS))

    def _make_outcome(self, history: History) -> Outcome:
        merge = history.value("merge", Merge)
        return Outcome(ending=Ending.MERGED if merge and merge.merged else Ending.REJECTED)


def shake(said: Said, dice: Random, stubbornness: float) -> None:
    """Let outsiders answer at random; at 1.0 nobody is ever satisfied."""

    def refuses() -> bool:
        return dice.random() < stubbornness

    said.architect = refuse(f"split {dice.random()}") if refuses() else approve()
    said.findings = refuses() and dice.random() < 0.5
    said.tests = TestStatus.FAILED if refuses() else dice.choice([TestStatus.PASSED, TestStatus.MISSING])
    for role in ("code", "security", "ops"):
        setattr(said, role, refuse(f"mend {dice.random()}") if refuses() else approve())
