"""Protocols of everything outside Atelier, and the models that adapters and their callers share. No implementation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from pydantic import SecretStr

from atelier_dagster.factory.approval import HumanDecision
from atelier_dagster.factory.ticket import RepoRef, Resolution, TicketKey

# ---------------------------------------------------------------------------------------------------- preflight


@dataclass(frozen=True)
class Check:
    """One line of `atelier doctor`."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True


class Preflight(Protocol):
    """Everything configured can say, cheaply and without changing anything, whether it would work."""

    async def preflight(self) -> Sequence[Check]:
        """Checks, in the order in which they should be mended."""
        ...


# ---------------------------------------------------------------------------------------------------- trackers


@dataclass(frozen=True)
class Issue:
    """A ticket as the tracker has it now."""

    key: TicketKey
    title: str
    body: str
    author: str
    labels: tuple[str, ...]
    is_open: bool
    url: str
    updated_at: datetime
    author_may_write: bool = False


@dataclass(frozen=True)
class Comment:
    """A comment on a ticket or pull request."""

    id: str
    author: str
    body: str
    created_at: datetime
    author_may_write: bool = False
    is_bot: bool = False


class Tracker(Preflight, Protocol):
    """An issue tracker."""

    async def repositories(self) -> Sequence[RepoRef]:
        """Repositories that are watched."""
        ...

    async def issues_changed_since(self, repo: RepoRef, cursor: str) -> tuple[Sequence[Issue], str]:
        """Issues changed since an opaque cursor ("" for all), closed and unlabelled ones too, and the next cursor.

        Cost is in proportion to what changed. Raises `Unavailable`; never answers an empty list for a failed read.
        """
        ...

    async def get_issue(self, key: TicketKey) -> Issue:
        """One ticket. Raises `NotFound`, `Unavailable`."""
        ...

    async def comments(self, key: TicketKey) -> Sequence[Comment]:
        """All comments of a ticket, oldest first."""
        ...

    async def upsert_comment(self, key: TicketKey, marker: str, body: str) -> Comment:
        """Post a comment, or edit our own that has the same `marker`: called twice, there is one comment."""
        ...

    async def claim_issue(self, key: TicketKey, label: str) -> None:
        """Make the ticket open and labelled, as one that is worked on; fine when it is already."""
        ...

    async def close_issue(self, key: TicketKey) -> None:
        """Close the ticket; closing a closed one is fine."""
        ...


# ------------------------------------------------------------------------------------------------------- forges


@dataclass(frozen=True)
class GitRemote:
    """Where git fetches and pushes. The credential never goes into the URL, argv or a log."""

    url: str
    username: str = ""
    password: SecretStr | None = None


@dataclass(frozen=True)
class PullRequestState:
    """A pull request as the forge has it now."""

    number: int
    url: str
    title: str
    body: str
    head_branch: str
    base_branch: str
    head: str
    """Commit at the tip of the head branch now."""
    is_open: bool
    merged: bool
    merge_commit: str = ""
    changed_files: int = 0


@dataclass(frozen=True)
class MergeAnswer:
    """The forge's answer to a merge: `refusal` is "" when merged, "head_moved", "base_moved" or "forge"."""

    merged: bool
    commit: str = ""
    refusal: Literal["", "head_moved", "base_moved", "forge"] = ""
    reason: str = ""


class Forge(Preflight, Protocol):
    """A git forge. Branches are pushed by git itself (see `remote`); everything else goes through here."""

    async def default_branch(self, repo: RepoRef) -> str:
        """Name of the default branch, also of an empty repository. Raises `NotFound`."""
        ...

    async def branch_head(self, repo: RepoRef, branch: str) -> str | None:
        """Commit at the branch's tip; None when the branch does not exist."""
        ...

    async def list_root_entries(self, repo: RepoRef, commit: str) -> Sequence[str] | None:
        """Names at the root, directories with a trailing slash; None when it cannot be told."""
        ...

    async def get_file(self, repo: RepoRef, commit: str, path: str, limit: int = 1_000_000) -> bytes | None:
        """Content of a regular file at a commit; None when there is none."""
        ...

    def remote(self, repo: RepoRef) -> GitRemote:
        """Clone URL and push credential."""
        ...

    async def open_pull_request(
        self, repo: RepoRef, *, head: str, base: str, title: str, body: str
    ) -> PullRequestState:
        """Open a pull request, or update title and body of the open one with the same head and base branches.

        A closed or merged one with the same branches is returned as it is, unchanged.
        """
        ...

    async def get_pull_request(self, repo: RepoRef, number: int) -> PullRequestState:
        """One pull request. Raises `NotFound`."""
        ...

    async def upsert_pull_request_comment(self, repo: RepoRef, number: int, marker: str, body: str) -> Comment:
        """Post a comment, or edit our own that has the same `marker`."""
        ...

    async def decisions(self, repo: RepoRef, number: int) -> Sequence[HumanDecision]:
        """Decisions made on a pull request (reviews, `/atelier` commands in its comments, CLI), oldest first."""
        ...

    async def merge(self, repo: RepoRef, number: int, *, head: str, message: str) -> MergeAnswer:
        """Merge if the pull request's head is still `head`; merged already with that head is success."""
        ...


# ---------------------------------------------------------------------------------------------------- workshops


class Phase(StrEnum):
    """Where a workshop stands."""

    PENDING = "Pending"
    BUILDING = "BuildingImage"
    PROVISIONING = "Provisioning"
    RUNNING = "Running"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    RESUMING = "Resuming"
    TERMINATING = "Terminating"
    FAILED = "Failed"


@dataclass(frozen=True)
class RepoSource:
    """What a workshop's checkout starts from.

    `repository` is a bare repository of the host's own that no agent can write; `remote` is where remote backends
    clone from. `commit` "" means an empty repository: the checkout is `git init` with `branch` unborn.
    """

    repository: Path
    remote: GitRemote
    branch: str
    commit: str


@dataclass(frozen=True)
class Resources:
    """Bounds of one workshop."""

    memory_mib: int = 4096
    processes: int = 512
    disk_mib: int = 8192
    cpu_seconds: int = 0
    """0: no bound but the exec's time-out."""


@dataclass(frozen=True)
class WorkshopSpec:
    """A wanted workshop. Creating one that exists with the same name gives the one that exists."""

    name: str
    source: RepoSource
    campaign: str
    ticket: str
    resources: Resources = field(default_factory=Resources)
    egress: tuple[str, ...] = ()
    """Hosts reachable through the proxy: exact, or `*.domain`."""
    model_access: bool = False
    """Give the workshop a model endpoint (a host-side reverse proxy adds the key)."""
    devcontainer: str = ""
    allowed_targets: tuple[str, ...] = ()
    exported_services: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkshopStatus:
    """A workshop as it is now."""

    name: str
    phase: Phase
    campaign: str
    ticket: str
    workdir: str
    """Path of the checkout as commands inside see it."""
    home: str = ""
    """Writable directory outside the checkout, as commands inside see it."""
    model_url: str = ""
    """OpenAI-compatible base URL as commands inside see it; "" without model access."""
    reason: str = ""
    created_at: datetime | None = None


@dataclass(frozen=True)
class ExecRequest:
    """A command to run. `argv` is never interpreted by a shell. The same `id` is never run twice: it is found again."""

    id: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str = ""
    """Relative to the checkout, or absolute inside the workshop."""
    stdin: bytes = b""
    timeout: float = 600.0
    """Seconds; the whole process group is killed after it."""
    output_limit: int = 4_000_000
    """Bytes kept per stream; the head and the tail are kept, the middle is dropped and said to be."""


@dataclass(frozen=True)
class ExecResult:
    """How a command ended. `exit_code` None: it was killed by its time limit, a signal or an operator."""

    id: str
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    duration: float = 0.0
    reason: str = ""
    """Why there is no exit code."""


@dataclass(frozen=True)
class ExecEvent:
    """One piece of a command's output as it comes, or (kind "exit") its end."""

    kind: Literal["stdout", "stderr", "exit"]
    data: bytes = b""
    result: ExecResult | None = None


class Workshops(Preflight, Protocol):
    """Places where agents and tests run, apart from the host and from each other."""

    async def create(self, spec: WorkshopSpec) -> WorkshopStatus:
        """Create, or find the one of that name. Returns at once; see `wait_running`."""
        ...

    async def wait_running(self, name: str, timeout: float = 900.0) -> WorkshopStatus:
        """Wait for phase Running (resuming a suspended one). Raises `TimedOut`, `WorkshopFailed`, `NotFound`."""
        ...

    async def status(self, name: str) -> WorkshopStatus | None:
        """Status, or None when there is no such workshop."""
        ...

    async def list(self, *, campaign: str = "", ticket: str = "") -> Sequence[WorkshopStatus]:
        """All workshops, or those of a campaign or ticket."""
        ...

    async def exec(self, name: str, request: ExecRequest) -> ExecResult:
        """Run a command to its end. The same id again waits for, or returns, the first one's result.

        Raises `NotFound` (no such workshop), `WorkshopFailed` (it is not running), `Unavailable`.
        """
        ...

    def stream(self, name: str, request: ExecRequest) -> AsyncIterator[ExecEvent]:
        """Like `exec`, with output as it comes, replayed from the start; the last event has kind "exit"."""
        ...

    async def put_file(self, name: str, path: str, data: bytes) -> None:
        """Write a file inside, relative to `home`. Parents are made; links are not followed."""
        ...

    async def get_file(self, name: str, path: str, limit: int) -> bytes:
        """Read a regular file inside (absolute, or relative to the checkout), through the exec channel.

        Links are not followed. Raises `NotFound`, `InvalidInput` (not a regular file, or larger than `limit` bytes).
        """
        ...

    async def suspend(self, name: str) -> None:
        """Stop using CPU; files and commands stay. Suspending a suspended or missing one is fine."""
        ...

    async def resume(self, name: str) -> None:
        """Undo `suspend`."""
        ...

    async def delete(self, name: str) -> None:
        """Remove it and all that it held. Deleting a missing one is fine."""
        ...


# ------------------------------------------------------------------------------------------------------- agents


@dataclass(frozen=True)
class AgentTask:
    """What a coding agent is asked to do. `prompt` has untrusted text fenced already."""

    prompt: str
    model: str
    model_url: str
    """OpenAI-compatible URL as seen from inside the workshop; needs no key there."""
    home: str
    timeout: float


@dataclass(frozen=True)
class AgentCommand:
    """How to run the agent in a workshop: files first (path relative to the workshop's home -> content), then argv."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, bytes]
    stdin: bytes = b""


@dataclass(frozen=True)
class AgentAnswer:
    """What the agent said at its end. `error` is "" when it ended well."""

    text: str
    error: str = ""
    error_code: str = ""
    """Stable: MODEL_AUTH, MODEL_BUDGET, MODEL_ERROR, AGENT_CRASHED, AGENT_TIMEOUT, AGENT_SILENT."""
    tokens_in: int = 0
    tokens_out: int = 0
    steps: int = 0


class Agent(Preflight, Protocol):
    """A coding agent: a command for a workshop, and the reading of its output. Pure but for `preflight`."""

    def command(self, task: AgentTask) -> AgentCommand:
        """The command that does `task`."""
        ...

    def read(self, result: ExecResult) -> AgentAnswer:
        """What a finished command said. Never raises on garbage: that becomes `error`."""
        ...

    def mounts(self) -> Sequence[tuple[Path, str]]:
        """Host paths the agent's program needs read-only in a local workshop, with their path inside."""
        ...


# ------------------------------------------------------------------------------------------------------ gateway


@dataclass(frozen=True)
class ChatMessage:
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class ChatAnswer:
    """A model's answer and what it cost. `cost_usd` None: unknown."""

    text: str
    model: str
    request_id: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    duration: float = 0.0
    finish_reason: str = ""


class Gateway(Preflight, Protocol):
    """An OpenAI-compatible model endpoint."""

    async def chat(self, role: str, messages: Sequence[ChatMessage]) -> ChatAnswer:
        """One answer for a role of the journey (analyst, planner, architect, code, security, ops, ...).

        Retries what may succeed later within a total time limit. Raises `ModelAuthFailed`, `ModelBudgetExceeded`,
        `ModelRefused`, `ModelUnavailable` (`ModelSilent` when every answer was empty); all are `AtelierError`.
        """
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Embeddings, one a text. Raises like `chat`, and `NotFound` when no embedding model is configured."""
        ...

    @property
    def workshop_upstream(self) -> ModelUpstream:
        """Where a workshop's host-side reverse proxy sends model requests."""
        ...


@dataclass(frozen=True)
class ModelUpstream:
    """A model endpoint as the host reaches it; the key is added by the host-side proxy only."""

    base_url: str
    api_key: SecretStr | None
    model: str


# ---------------------------------------------------------------------------------------------------- artifacts


@runtime_checkable
class ObjectStore(Protocol):
    """Bytes under keys, written once. Keys are `/`-separated segments of `[A-Za-z0-9._~-]`, never `..`."""

    async def put_if_absent(self, key: str, data: bytes, media_type: str = "application/octet-stream") -> bool:
        """Store unless the key exists; True when it was written. Atomic: no reader sees half an object."""
        ...

    async def get(self, key: str) -> bytes:
        """Raises `NotFound`, `Unavailable`."""
        ...

    async def exists(self, key: str) -> bool:
        """Whether the key exists."""
        ...

    async def list(self, prefix: str) -> Sequence[str]:
        """Keys below a prefix, sorted."""
        ...

    async def preflight(self) -> Sequence[Check]:
        """Whether it can be written and read."""
        ...


# ---------------------------------------------------------------------------------------------------- knowledge


class KnowledgeIndex(Preflight, Protocol):
    """Past resolutions, by tenant (tracker/owner) and repository."""

    async def add(self, key: TicketKey, cycle: int, title: str, summary: str) -> None:
        """Index how a ticket was solved; the same ticket and cycle again replaces."""
        ...

    async def similar(self, repo: RepoRef, text: str, limit: int = 3) -> Sequence[Resolution]:
        """Most similar past resolutions of the same tenant."""
        ...
