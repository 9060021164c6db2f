"""What building, reviewing and delivering a change produces: one model an asset. Not here: how it is produced."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from atelier_dagster.factory.ticket import Frozen
from atelier_dagster.factory.verdict import QaVerdict


class ObjectRef(Frozen):
    """Something too large for an artifact, kept as an object of its own and named by its hash."""

    sha256: str
    size: int = Field(ge=0)
    """Bytes."""
    media_type: str = "application/octet-stream"
    key: str = ""
    """The object's key in the store."""


class WorkshopRecord(Frozen):
    """One workshop of the campaign and what is to be done in it."""

    name: str
    task_id: str
    branch: str
    start_commit: str
    """Commit that the work starts from ("" on an empty repository)."""
    scope: tuple[str, ...]
    devcontainer: str = ""
    role: str = "developer"
    exported_services: tuple[str, ...] = ()
    allowed_targets: tuple[str, ...] = ()


class Campaign(Frozen):
    """All workshops of one delivery, and the feedback that it must answer."""

    id: str
    round: int = 1
    attempt: int = 1
    workshops: tuple[WorkshopRecord, ...]
    rework: bool = False
    """One agent works on the integration branch with the union of the scopes."""
    feedback: tuple[str, ...] = ()
    """Objections, failing test output or human comments to answer, as text."""


class TaskChange(Frozen):
    """What one agent delivered."""

    task_id: str
    workshop: str
    branch: str
    attempt_id: str
    base: str
    head: str
    """Equal to `base` when nothing changed."""
    commits: tuple[str, ...] = ()
    out_of_scope: tuple[str, ...] = ()
    transcript: ObjectRef | None = None
    exit_code: int | None = None
    answer: str = ""
    problem: str = ""
    """What went wrong (agent hung, crashed, did nothing), for the human to see."""


class Changes(Frozen):
    """Deliveries of every sub-task."""

    tasks: tuple[TaskChange, ...]


class Integration(Frozen):
    """The integration branch: the pull request's head."""

    branch: str
    base: str
    """Base branch's commit that is contained in `head` ("" on an empty repository)."""
    head: str
    merged: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Branches that were left out because they conflicted."""


class DiffStat(Frozen):
    """The change under review. The text is an object of its own."""

    base: str
    head: str
    paths: tuple[str, ...]
    """Every path touched, old and new names of renames included."""
    text: ObjectRef
    files: int
    insertions: int = 0
    deletions: int = 0
    binary: tuple[str, ...] = ()


class TestStatus(StrEnum):
    """How the repository's own tests ended."""

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    MISSING = "missing"
    """There is no `.devcontainer/test.sh`."""


class TestReport(Frozen):
    """Exit code and output of `.devcontainer/test.sh` on the integrated head."""

    __test__ = False

    status: TestStatus
    head: str
    exit_code: int | None = None
    """None when the tests were stopped by their time limit, or are missing."""
    output_tail: str = ""
    output: ObjectRef | None = None
    timed_out: bool = False


class TestedDiff(Frozen):
    """Gate: a diff whose tests passed, or whose correction budget is spent."""

    __test__ = False

    head: str
    overridden: bool = False
    concerns: tuple[str, ...] = ()


class ReviewGate(Frozen):
    """Gate: every reviewer approved, or the review budget is spent; with every outstanding concern of the journey."""

    head: str
    overridden: bool = False
    concerns: tuple[str, ...] = ()


class PullRequest(Frozen):
    """The pull request as opened or updated."""

    number: int
    url: str
    title: str
    body: str
    head: str
    base: str
    branch: str
    base_branch: str
    changed_files: int = Field(ge=1)
    diff_sha256: str
    concerns: tuple[str, ...] = ()


class RefusalKind(StrEnum):
    """Why a merge did not happen."""

    BASE_MOVED = "base_moved"
    HEAD_MOVED = "head_moved"
    FORGE = "forge"


class Merge(Frozen):
    """How the merge went. Only `merged` is final."""

    merged: bool
    commit: str = ""
    head: str
    refusal: RefusalKind | None = None
    reason: str = ""


class Knowledge(Frozen):
    """What was indexed, or why it was not; a failure never fails the run."""

    indexed: bool
    summary: str = ""
    problem: str = ""


class Evidence(Frozen):
    """One file that QA left."""

    path: str
    object: ObjectRef
    uploaded: bool = True


class QaReport(Frozen):
    """The verdict on the merged code, with its evidence."""

    commit: str
    verdict: QaVerdict
    evidence: tuple[Evidence, ...] = ()
    problems: tuple[str, ...] = ()


class Ending(StrEnum):
    """How a cycle can end."""

    MERGED = "merged"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class Outcome(Frozen):
    """How the cycle ended, and what was cleaned up."""

    ending: Ending
    reason: str = ""
    workshops_removed: tuple[str, ...] = ()
    evidence: dict[str, str] = Field(default_factory=dict)
    """Asset -> sha256 of the artifacts that the cycle ended with."""
