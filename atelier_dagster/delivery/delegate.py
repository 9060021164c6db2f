"""Has one sub-task done by an agent in a workshop, and takes out what it changed. Not here: which tasks, or when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from pydantic import SecretStr, ValidationError

from atelier_dagster.artifacts import ArtifactStore
from atelier_dagster.delivery._bundle import BundleRejected
from atelier_dagster.delivery._inside import (
    BUNDLE,
    COMMIT,
    FIND,
    NEEDS_COMMIT,
    PREPARE,
    Inside,
    check_branch,
    exec_id,
    short,
    tail,
)
from atelier_dagster.delivery.masking import mask
from atelier_dagster.delivery.repository import HostRepository
from atelier_dagster.factory.change import ObjectRef, TaskChange, WorkshopRecord
from atelier_dagster.factory.errors import InvalidInput, NotFound, WorkshopFailed
from atelier_dagster.factory.scopes import in_scope
from atelier_dagster.gitio import branch_ref
from atelier_dagster.ports import (
    Agent,
    AgentAnswer,
    AgentTask,
    ExecRequest,
    ExecResult,
    Workshops,
    WorkshopSpec,
    WorkshopStatus,
)

_ANSWER_CHARACTERS = 20_000
_COMMIT_REFUSED = 5
_MAX_LISTED = 20


@dataclass(frozen=True)
class _Ended:
    """How the agent ended, as kept for a repetition."""

    exit_code: int | None
    answer: str
    problem: str
    transcript: dict[str, Any] | None
    tokens_in: int = 0
    tokens_out: int = 0


async def run_agent(
    workshops: Workshops,
    agent: Agent,
    status: WorkshopStatus,
    *,
    prompt: str,
    exec_id: str,
    model: str,
    timeout: float,
) -> tuple[AgentAnswer, ExecResult]:
    """Run the agent in a workshop that runs. The same `exec_id` is found again, not run and paid for again."""
    task = AgentTask(prompt=prompt, model=model, model_url=status.model_url, home=status.home, timeout=timeout)
    command = agent.command(task)
    for path, content in command.files.items():
        await workshops.put_file(status.name, path, content)
    request = ExecRequest(id=exec_id, argv=command.argv, env=command.env, stdin=command.stdin, timeout=timeout)
    result = await workshops.exec(status.name, request)
    return agent.read(result), result


async def delegate(
    workshops: Workshops,
    agent: Agent,
    repository: HostRepository,
    store: ArtifactStore,
    *,
    spec: WorkshopSpec,
    record: WorkshopRecord,
    prompt: str,
    attempt_id: str,
    model: str,
    timeout: float,
    title: str = "",
    secrets: Sequence[SecretStr] = (),
) -> TaskChange:
    """Let the agent do the record's task, commit what is there, and import the branch into the host's repository.

    Repeating an attempt asks first what was done already, and pays for nothing twice. What goes wrong with the agent
    or its work is the change's `problem`; failures of the workshop itself raise (`WorkshopFailed`, `Unavailable`).
    """
    job = _Job(workshops, agent, repository, store, record, attempt_id, tuple(secrets))
    if (done := await job.recorded()) is not None:
        return done
    await workshops.create(spec)
    status = await workshops.wait_running(record.name)
    ended = await job.earlier() if await job.committed() else None
    if ended is None:
        await job.prepare(status)
        ended = await job.work(status, prompt=prompt, model=model, timeout=timeout)
    head, problems = await job.take_out(title)
    change = await job.describe(ended, head, problems)
    await job.record_done(change)
    return change


@dataclass(frozen=True)
class _Job:
    workshops: Workshops
    agent: Agent
    repository: HostRepository
    store: ArtifactStore
    record: WorkshopRecord
    attempt_id: str
    secrets: tuple[SecretStr, ...]

    @property
    def inside(self) -> Inside:
        return Inside(self.workshops, self.record.name)

    @property
    def branch(self) -> str:
        return check_branch(self.record.branch)

    @property
    def trailer(self) -> str:
        return f"Atelier-Attempt: {exec_id(self.attempt_id)}"

    def _key(self, part: str) -> str:
        return _key(self.attempt_id, part)

    async def recorded(self) -> TaskChange | None:
        """The whole change, if this attempt was finished and its commits are here."""
        try:
            change = TaskChange.model_validate_json(await self.store.objects.get(self._key("done")))
        except (NotFound, ValidationError):
            return None
        here = change.head == change.base or await self.repository.has(change.head)
        return change if here else None

    async def record_done(self, change: TaskChange) -> None:
        data = change.model_dump_json().encode()
        await self.store.objects.put_if_absent(self._key("done"), data, "application/json")

    async def committed(self) -> bool:
        """Whether the workshop has this attempt's work committed."""
        found = await self.inside.script(FIND, self.branch, short(self.attempt_id), self.trailer)
        return bool(found.stdout.strip())

    async def earlier(self) -> _Ended | None:
        """How the agent of a committed attempt ended; its words are lost when nothing recorded them."""
        try:
            data = await self.store.objects.get(self._key("ended"))
        except NotFound:
            return _Ended(None, "", "the agent's answer was lost: its work was found committed", None)
        return _Ended(**cast("dict[str, Any]", json.loads(data)))

    async def prepare(self, status: WorkshopStatus) -> None:
        """Put the checkout where the work starts, with commits that it does not have yet."""
        start, name = self.record.start_commit, short(self.attempt_id)
        result = await self.inside.script(PREPARE, self.branch, start, name, "", ok=(0, NEEDS_COMMIT))
        if result.exit_code != NEEDS_COMMIT:
            return
        # One name a workshop: what a killed process left there, the next one takes over and removes.
        ref = f"refs/atelier/handover/{short(self.record.name)}"
        await self.repository.set_ref(ref, start)
        try:
            known = result.stdout.decode("ascii", "replace").strip()
            excluded = [known] if await self._ancestor(known) else []
            data = await self.repository.bundle([ref], excluded)
        finally:
            await self.repository.delete_ref(ref)
        await self.workshops.put_file(status.name, f"handover/{name}.bundle", data)
        await self.inside.script(PREPARE, self.branch, start, name, f"{status.home}/handover/{name}.bundle")

    async def _ancestor(self, known: str) -> bool:
        """Whether what the workshop says that it has is a proper part of what it is to get."""
        try:
            start = self.record.start_commit
            return known != start and await self.repository.has(known) and await self.repository.contains(start, known)
        except InvalidInput:
            return False

    async def work(self, status: WorkshopStatus, *, prompt: str, model: str, timeout: float) -> _Ended:
        answer, result = await run_agent(
            self.workshops,
            self.agent,
            status,
            prompt=prompt,
            exec_id=exec_id(self.attempt_id),
            model=model,
            timeout=timeout,
        )
        transcript = await self.store.put_object(self._transcript(result), "text/plain")
        text = mask(answer.text[-_ANSWER_CHARACTERS:].encode("utf-8", "replace"), self.secrets).decode()
        ended = _Ended(
            result.exit_code,
            text,
            self._problem(answer, result, timeout),
            transcript.model_dump(),
            answer.tokens_in,
            answer.tokens_out,
        )
        await self.store.objects.put_if_absent(self._key("ended"), json.dumps(asdict(ended)).encode())
        return ended

    def _transcript(self, result: ExecResult) -> bytes:
        data = result.stdout
        if result.stderr:
            data += b"\n--- stderr ---\n" + result.stderr
        return mask(data, self.secrets)

    def _problem(self, answer: AgentAnswer, result: ExecResult, timeout: float) -> str:
        if answer.error:
            code = f"[{answer.error_code}] " if answer.error_code else ""
            return mask(f"{code}{answer.error}".encode("utf-8", "replace"), self.secrets).decode()
        if result.timed_out:
            return f"[AGENT_TIMEOUT] the agent was stopped at its limit of {timeout:g} s"
        if result.exit_code is None:
            return f"[AGENT_CRASHED] the agent was stopped: {result.reason or 'no reason given'}"
        if result.exit_code != 0:
            return f"[AGENT_CRASHED] the agent ended with exit code {result.exit_code}"
        return ""

    async def take_out(self, title: str) -> tuple[str, list[str]]:
        """Commit what is there and import the branch; the head here, and what went wrong."""
        start = self.record.start_commit
        message = f"{_subject(title or f'Deliver {self.record.task_id}')}\n\n{self.trailer}\n"
        argv = (self.branch, start, short(self.attempt_id))
        result = await self.inside.script(COMMIT, *argv, stdin=message.encode(), ok=(0, _COMMIT_REFUSED))
        problems: list[str] = []
        if result.exit_code == _COMMIT_REFUSED:
            problems.append(f"what the agent left could not be committed: {tail(result.stderr, 1000)}")
        elif b"not everything could be added" in result.stderr:
            problems.append(f"some files could not be committed: {tail(result.stderr, 1000)}")
        head = result.stdout.decode("ascii", "replace").strip()
        if head in ("", start):
            return start, problems
        try:
            return await self._import(), problems
        except BundleRejected as error:
            return start, [*problems, str(error)]

    async def _import(self) -> str:
        start = self.record.start_commit
        made = await self.inside.script(BUNDLE, self.branch, start)
        path = made.stdout.decode("utf-8", "surrogateescape").rstrip("\n")
        limit = self.repository.bundle_limits.packed
        try:
            data = await self.workshops.get_file(self.record.name, path, limit)
        except InvalidInput as error:
            raise BundleRejected(
                f"the workshop's bundle is not taken: {error.message}", fix="see the change"
            ) from error
        return await self.repository.import_bundle(data, ref=branch_ref(self.branch), expected_parent=start)

    async def describe(self, ended: _Ended, head: str, problems: list[str]) -> TaskChange:
        start = self.record.start_commit
        changed = head != start
        paths = await self.repository.changed_paths(start, head) if changed else ()
        if changed and (links := await self.repository.new_gitlinks(start, head)):
            listed = ", ".join(links[:_MAX_LISTED])
            problems.append(f"became submodules, so that their files are not in the change: {listed}")
        told = ended.problem
        if not changed and not told:
            told = "[AGENT_IDLE] the agent ended well and changed nothing"
        scope = self.record.scope
        return TaskChange(
            task_id=self.record.task_id,
            workshop=self.record.name,
            branch=self.branch,
            attempt_id=self.attempt_id,
            base=start,
            head=head,
            commits=await self.repository.commits(start, head) if changed else (),
            out_of_scope=await asyncio.to_thread(_outside, paths, scope),
            transcript=ObjectRef(**ended.transcript) if ended.transcript else None,
            exit_code=ended.exit_code,
            answer=ended.answer,
            problem="; ".join(text for text in (told, *problems) if text),
        )


async def tokens_of(store: ArtifactStore, attempt_id: str) -> tuple[int, int]:
    """Tokens in and out that an attempt's agent used; they are no part of the change, whose hash must not know them."""
    try:
        data = await store.objects.get(_key(attempt_id, "ended"))
    except NotFound:
        return 0, 0
    ended = _Ended(**cast("dict[str, Any]", json.loads(data)))
    return ended.tokens_in, ended.tokens_out


def _key(attempt_id: str, part: str) -> str:
    return f"attempts/{short(attempt_id)}/{part}.json"


def _outside(paths: Sequence[str], scope: Sequence[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if not in_scope(path, scope))


def _subject(text: str) -> str:
    return " ".join(text.replace("\0", "").split())[:100] or "Deliver the task"


__all__ = ["WorkshopFailed", "delegate", "run_agent", "tokens_of"]
