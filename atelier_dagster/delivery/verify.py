"""Runs a repository's own tests on one commit, in a fresh clone inside a workshop. Not here: what follows from it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import SecretStr

from atelier_dagster.artifacts import ArtifactStore
from atelier_dagster.delivery import _inside
from atelier_dagster.delivery._inside import CLONE, NEEDS_COMMIT, Inside, short
from atelier_dagster.delivery.masking import mask
from atelier_dagster.delivery.repository import HostRepository
from atelier_dagster.factory.change import TestReport, TestStatus
from atelier_dagster.ports import ExecRequest, ExecResult, Workshops, WorkshopSpec, WorkshopStatus

TEST_SCRIPT = ".devcontainer/test.sh"


async def verify(
    workshops: Workshops,
    repository: HostRepository,
    store: ArtifactStore,
    *,
    spec: WorkshopSpec,
    head: str,
    exec_id: str,
    timeout: float,
    tail: int = 6000,
    secrets: Sequence[SecretStr] = (),
) -> TestReport:
    """Run `.devcontainer/test.sh` on `head`, executable or not; without one the report says MISSING.

    `tail` is in characters. The same `exec_id` gives the same run's result. Raises `WorkshopFailed`, `Unavailable`.
    """
    if not head or not await repository.has_file(head, TEST_SCRIPT):
        return TestReport(status=TestStatus.MISSING, head=head)
    await workshops.create(spec)
    status = await workshops.wait_running(spec.name)
    name = _inside.exec_id(exec_id)
    directory = f"{status.home}/verify/{short(exec_id)}"
    start = spec.source.commit
    await _clone(workshops, repository, status, head=head, start=start, name=name, directory=directory)
    result = await workshops.exec(spec.name, _tests(name, directory, timeout))
    await Inside(workshops, spec.name).script('rm -rf -- "$1"', directory, ok=(0, 1))
    return await _report(store, head, result, tail, secrets)


def _tests(name: str, directory: str, timeout: float) -> ExecRequest:
    # One stream, so that errors stand where they happened.
    argv = ("sh", "-c", 'exec bash "$1" 2>&1', "atelier", TEST_SCRIPT)
    return ExecRequest(id=name, argv=argv, cwd=directory, timeout=timeout)


async def _clone(
    workshops: Workshops,
    repository: HostRepository,
    status: WorkshopStatus,
    *,
    head: str,
    start: str,
    name: str,
    directory: str,
) -> None:
    """Bring only what the workshop lacks, or everything when it cannot give the rest."""
    inside, path = Inside(workshops, status.name), f"verify/{short(name)}.bundle"
    known = start if start and start != head and await repository.contains(head, start) else ""
    for have in dict.fromkeys((known, "")):
        data = await _bundle(repository, head, have, status.name)
        await workshops.put_file(status.name, path, data)
        argv = (directory, f"{status.home}/{path}", head, have, status.workdir)
        # Under an id that follows from the tests': a clone that they may still be running in is never made anew.
        id_ = f"{name}-clone" if have == known else f"{name}-clone-whole"
        result = await inside.script(CLONE, *argv, id_=id_, ok=(0, NEEDS_COMMIT) if have else (0,))
        if result.exit_code == 0:
            return


async def _bundle(repository: HostRepository, head: str, have: str, workshop: str) -> bytes:
    # One name a workshop: what a killed process left there, the next one takes over and removes.
    ref = f"refs/atelier/verify/{short(workshop)}"
    await repository.set_ref(ref, head)
    try:
        return await repository.bundle([ref], [have] if have else [])
    finally:
        await repository.delete_ref(ref)


async def _report(
    store: ArtifactStore, head: str, result: ExecResult, tail: int, secrets: Sequence[SecretStr]
) -> TestReport:
    output = mask(result.stdout + result.stderr, secrets)
    text = output.decode("utf-8", "replace")
    return TestReport(
        status=TestStatus.PASSED if result.exit_code == 0 else TestStatus.FAILED,
        head=head,
        exit_code=result.exit_code,
        output_tail=text[-tail:] if tail > 0 else "",
        output=await store.put_object(output, "text/plain"),
        timed_out=result.timed_out,
    )
