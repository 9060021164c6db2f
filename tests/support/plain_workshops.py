"""Workshops without a sandbox or server, for tests of what is done with them: directories and plain processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from atelier_dagster.factory.errors import AtelierError, InvalidInput, NotFound
from atelier_dagster.files import read_regular
from atelier_dagster.ports import Check, ExecEvent, ExecRequest, ExecResult, Phase, WorkshopSpec, WorkshopStatus
from tests.support.repositories import git


class PlainWorkshops:
    """Every command runs once per id. `before` is called with each request, and may raise what a backend would."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.requests: list[ExecRequest] = []
        self.before: Callable[[ExecRequest], None] = lambda request: None
        self.undeletable: dict[str, AtelierError] = {}
        self._specs: dict[str, WorkshopSpec] = {}
        self._results: dict[tuple[str, str], ExecResult] = {}

    def checkout(self, name: str) -> Path:
        """The checkout as the test sees it."""
        return self.root / name / "checkout"

    async def preflight(self) -> Sequence[Check]:
        return []

    async def create(self, spec: WorkshopSpec) -> WorkshopStatus:
        path = self.checkout(spec.name)
        if not path.exists():
            path.mkdir(parents=True)
            (self.root / spec.name / "home").mkdir()
            git(path, "init", "-q")
            if spec.source.commit:
                git(path, "fetch", "-q", str(spec.source.repository), spec.source.commit)
                git(path, "update-ref", f"refs/heads/{spec.source.branch}", spec.source.commit)
            git(path, "symbolic-ref", "HEAD", f"refs/heads/{spec.source.branch}")
            if spec.source.commit:
                git(path, "reset", "-q", "--hard")
        self._specs[spec.name] = spec
        return self._status(spec.name)

    async def wait_running(self, name: str, timeout: float = 900.0) -> WorkshopStatus:
        return self._status(name)

    async def status(self, name: str) -> WorkshopStatus | None:
        return self._status(name) if name in self._specs else None

    async def list(self, *, campaign: str = "", ticket: str = "") -> Sequence[WorkshopStatus]:
        return [self._status(name) for name, spec in self._specs.items() if ticket in ("", spec.ticket)]

    async def exec(self, name: str, request: ExecRequest) -> ExecResult:
        self.before(request)
        found = self._results.get((name, request.id))
        if found is None:
            self.requests.append(request)
            found = self._results[name, request.id] = self._run(name, request)
        return found

    async def stream(self, name: str, request: ExecRequest) -> AsyncIterator[ExecEvent]:
        yield ExecEvent("exit", result=await self.exec(name, request))

    async def put_file(self, name: str, path: str, data: bytes) -> None:
        target = self.root / name / "home" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    async def get_file(self, name: str, path: str, limit: int) -> bytes:
        target = self.checkout(name) / path
        inside = target.parent.resolve().is_relative_to(self.root / name)
        if not inside:
            raise InvalidInput(f"{path} leads out of the workshop")
        return read_regular(target, limit)[0]

    async def suspend(self, name: str) -> None:
        return

    async def resume(self, name: str) -> None:
        return

    async def delete(self, name: str) -> None:
        if name in self.undeletable:
            raise self.undeletable[name]
        self._specs.pop(name, None)
        self._results = {key: value for key, value in self._results.items() if key[0] != name}
        shutil.rmtree(self.root / name, ignore_errors=True)

    def _status(self, name: str) -> WorkshopStatus:
        if name not in self._specs:
            raise NotFound(f"no workshop {name}")
        spec = self._specs[name]
        home = str(self.root / name / "home")
        return WorkshopStatus(name, Phase.RUNNING, spec.campaign, spec.ticket, str(self.checkout(name)), home)

    def _run(self, name: str, request: ExecRequest) -> ExecResult:
        cwd = self.checkout(name) / request.cwd
        env = {"PATH": os.environ["PATH"], "HOME": str(self.root / name / "home"), **request.env}
        process = subprocess.Popen(
            request.argv, cwd=cwd, env=env, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            out, err = process.communicate(request.stdin, timeout=request.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            return ExecResult(request.id, None, out, err, timed_out=True, reason="time limit")
        code = process.returncode if process.returncode >= 0 else None
        return ExecResult(request.id, code, out, err, reason="" if code is not None else "killed")
