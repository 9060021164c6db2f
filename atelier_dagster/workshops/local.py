"""Workshops on this machine: a directory, a sandbox and a detached supervisor each. Not here: the sandbox itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atelier_dagster.factory.errors import InvalidInput, NotFound, TimedOut, Unavailable, WorkshopFailed
from atelier_dagster.network.hosts import REGISTRIES
from atelier_dagster.network.log import read_log
from atelier_dagster.ports import (
    Check,
    ExecEvent,
    ExecRequest,
    ExecResult,
    ModelUpstream,
    Phase,
    WorkshopSpec,
    WorkshopStatus,
)
from atelier_dagster.sandbox import bubblewrap, staging
from atelier_dagster.sandbox.config import (
    BoundsConfig,
    EgressConfig,
    SourceConfig,
    SupervisorConfig,
    UpstreamConfig,
)
from atelier_dagster.sandbox.frames import Message
from atelier_dagster.sandbox.places import Places, read_state, remove_tree, write_atomically
from atelier_dagster.workshops import _client
from atelier_dagster.workshops._requests import (
    exec_message,
    result,
    validate,
    validate_exec,
    validate_name,
    validate_size,
)

logger = logging.getLogger(__name__)

UID_RANGE = (400_000, 465_535)
"""Host users of workshops when started as root: one each, below no other's."""
NOBODY = 65534
REVIVALS = 3
ASLEEP = "its supervisor is not running; it starts again when the workshop is used"
NO_SANDBOX_FIX = (
    "allow unprivileged user namespaces (or run as root), or install the system's bubblewrap; "
    "without a sandbox only the explicit unsafe mode runs anything"
)


class LocalWorkshops:
    """Implements `ports.Workshops` on this machine.

    A command on a suspended workshop is refused (`WORKSHOP_SUSPENDED`); results of earlier ones can still be asked
    for. A workshop whose supervisor died is started again by whatever uses it, with its files kept.
    """

    def __init__(
        self,
        root: Path,
        *,
        mounts: Sequence[tuple[Path, str]] = (),
        upstream: ModelUpstream | None = None,
        unsafe: bool = False,
        default_egress: tuple[str, ...] = REGISTRIES,
        egress_ports: tuple[int, ...] = (80, 443),
        egress_networks: tuple[str, ...] = (),
        upstream_proxy: str = "",
        ca_bundle: Path | None = None,
        uid_range: tuple[int, int] = UID_RANGE,
    ) -> None:
        self._root = Path(root).absolute()
        self._mounts = tuple((str(source), target) for source, target in mounts)
        self._upstream = upstream
        self._unsafe = unsafe
        self._egress = EgressConfig(default_egress, egress_ports, egress_networks, upstream_proxy)
        self._ca_bundle = str(ca_bundle) if ca_bundle else ""
        self._uid_range = uid_range
        self._bwrap: str | None = None
        if unsafe:
            logger.warning("workshops run WITHOUT a sandbox: commands can read and change all that this user can")

    # --------------------------------------------------------------------------------------------- life cycle

    async def create(self, spec: WorkshopSpec) -> WorkshopStatus:
        """See `ports.Workshops.create`. Raises `InvalidInput`, `WorkshopFailed` (code SANDBOX_UNAVAILABLE)."""
        validate(spec)
        async with self._lock(spec.name):
            places = self._places(spec.name)
            state = read_state(places.state)
            if not places.metadata.exists() or (state.failed and not state.ready):
                await self._find_bwrap()
                await _client.end(places)
                await self._make(places, spec)
            if not places.supervisor_alive():
                await self._start(places)
        status = await self.status(spec.name)
        if status is None:
            raise Unavailable(f"workshop {spec.name!r} was deleted while it was created")
        return status

    async def wait_running(self, name: str, timeout: float = 900.0) -> WorkshopStatus:
        """See `ports.Workshops.wait_running`. A supervisor that died is started again."""
        for _ in range(REVIVALS):
            places = await self._alive(name)
            try:
                if self._upstream is not None:  # it may have changed since the supervisor was started
                    await _client.ask(places, {"op": "upstream", "upstream": self._upstream_values()})
                reply, _ = await _client.ask(places, {"op": "wait"}, limit=timeout)
                if reply["phase"] == Phase.SUSPENDED:
                    reply, _ = await _client.ask(places, {"op": "resume"})
            except _client.SupervisorGone:
                self._raise_failure(places)
                continue
            if reply["phase"] == Phase.FAILED:
                self._raise_failure(places, reply["reason"])
            return self._status(places, reply)
        raise WorkshopFailed(f"workshop {name!r} ends as soon as it is started", fix="see sandbox.log in its directory")

    async def status(self, name: str) -> WorkshopStatus | None:
        """See `ports.Workshops.status`."""
        places = self._places(name)
        if not places.metadata.exists():
            return None
        try:
            reply, _ = await _client.ask(places, {"op": "status"})
        except _client.SupervisorGone:
            state = read_state(places.state)
            phase = Phase.FAILED if state.failed else Phase.SUSPENDED
            reply = {"phase": phase, "reason": state.failed or ASLEEP, "model_url": ""}
        return self._status(places, reply) if places.metadata.exists() else None

    async def list(self, *, campaign: str = "", ticket: str = "") -> Sequence[WorkshopStatus]:
        """See `ports.Workshops.list`."""
        names = sorted(path.parent.name for path in self._root.glob("*/workshop.json"))
        found = await asyncio.gather(*(self.status(name) for name in names))
        return [
            one for one in found if one is not None and campaign in {"", one.campaign} and ticket in {"", one.ticket}
        ]

    async def suspend(self, name: str) -> None:
        """See `ports.Workshops.suspend`."""
        try:
            await _client.ask(self._places(name), {"op": "suspend"})
        except _client.SupervisorGone:
            return  # nothing runs, so it uses no CPU

    async def resume(self, name: str) -> None:
        """See `ports.Workshops.resume`."""
        await self.wait_running(name)

    async def delete(self, name: str) -> None:
        """See `ports.Workshops.delete`."""
        validate_name(name)
        if not self._root.exists():
            return
        async with self._lock(name):
            places = self._places(name)
            if places.root.exists():
                await _client.end(places)
                # Renamed first: from here on it is gone, whatever interrupts the removal.
                self._directory(".trash")
                places.root.rename(Path(tempfile.mkdtemp(dir=self._directory(f".trash/{name}"))) / name)
            await asyncio.to_thread(remove_tree, self._root / ".trash" / name)
        await self._empty_trash()

    async def _empty_trash(self) -> None:
        """Remove what other removals have left that were interrupted; one that still goes on is left to itself."""
        for left in list(self._directory(".trash").iterdir()):
            with contextlib.suppress(TimedOut):
                async with _client.locked(self._root / ".locks" / f"{left.name}.lock", limit=0.0):
                    await asyncio.to_thread(remove_tree, left)

    # ------------------------------------------------------------------------------------------------ commands

    async def exec(self, name: str, request: ExecRequest) -> ExecResult:
        """See `ports.Workshops.exec`."""
        async for event in self.stream(name, request):
            if event.result is not None:
                return event.result
        raise Unavailable(f"workshop {name!r} did not say how command {request.id!r} ended")

    async def stream(self, name: str, request: ExecRequest) -> AsyncIterator[ExecEvent]:
        """See `ports.Workshops.stream`. What is dropped for `output_limit` is missing here as well."""
        validate_exec(request)
        sent = {"stdout": 0, "stderr": 0}
        for _ in range(REVIVALS):
            streams = {"stdout": bytearray(), "stderr": bytearray()}
            places = await self._alive(name)
            try:
                async for reply, data in _client.converse(places, exec_message(request), request.stdin):
                    if reply["event"] == "exit":
                        yield ExecEvent("exit", result=result(request.id, reply["outcome"], streams))
                        return
                    stream = reply["event"]
                    streams[stream] += data
                    if fresh := bytes(streams[stream][sent[stream] :]):
                        sent[stream] += len(fresh)
                        yield ExecEvent(stream, fresh)
            except _client.SupervisorGone:
                continue
        raise Unavailable(f"workshop {name!r} ends again and again", fix="see sandbox.log in its directory")

    async def cancel(self, name: str, exec_id: str, reason: str = "cancelled by an operator") -> None:
        """Kill a running command; one that has ended, or never was, is fine."""
        try:
            await _client.ask(self._places(name), {"op": "cancel", "exec": exec_id, "reason": reason})
        except _client.SupervisorGone:
            return

    async def put_file(self, name: str, path: str, data: bytes) -> None:
        """See `ports.Workshops.put_file`. Raises `InvalidInput` for a path that leaves the home directory."""
        if path.startswith("/"):
            raise InvalidInput(f"{path!r} is not relative to the workshop's home")
        validate_size(data)
        await self._ask(name, {"op": "put", "path": path}, data)

    async def get_file(self, name: str, path: str, limit: int) -> bytes:
        """See `ports.Workshops.get_file`."""
        _, data = await self._ask(name, {"op": "get", "path": path, "limit": limit})
        return data

    def egress_log(self, name: str) -> Sequence[dict[str, object]]:
        """Decisions of the workshop's egress proxy, oldest first (the log is bounded)."""
        return read_log(self._places(name).egress_log)

    # ----------------------------------------------------------------------------------------------- preflight

    async def preflight(self) -> Sequence[Check]:
        """Whether a sandbox can be made here, and how its bounds are enforced."""
        checks = [self._check_git()]
        if self._unsafe:
            checks.append(Check("workshops: sandbox", True, "UNSAFE: commands run without a sandbox", required=False))
            return checks
        try:
            bwrap = await self._find_bwrap()
        except WorkshopFailed as error:
            return [*checks, Check("workshops: sandbox", False, error.message, error.fix)]
        users = "a user of its own each" if self._own_uids() else "this user, in a user namespace"
        if os.geteuid() == 0 and not self._own_uids():
            users = "user nobody, shared by all workshops"
        return [
            *checks,
            Check("workshops: sandbox", True, f"{bwrap}; {users}"),
            Check("workshops: bounds", True, "memory and disk watched; processes and file size by rlimit"),
        ]

    def _check_git(self) -> Check:
        git = shutil.which("git")
        return Check("workshops: git", git is not None, git or "git is not installed", "install git")

    async def _find_bwrap(self) -> str:
        """First bubblewrap that makes a sandbox here. Raises `WorkshopFailed` (SANDBOX_UNAVAILABLE)."""
        if self._bwrap is None:
            self._bwrap = "" if self._unsafe else await self._try_candidates()
        return self._bwrap

    async def _try_candidates(self) -> str:
        problems: list[str] = []
        for bwrap in bubblewrap.candidates():
            scratch = Path(tempfile.mkdtemp(dir=self._directory(".probe")))
            config = self._base_config(scratch, bwrap, self._first_uid())
            try:
                code, output = await _client.run_program(config, "probe")
            except TimedOut as error:
                code, output = 1, error.message
            finally:
                remove_tree(scratch)
            if code == 0:
                return bwrap
            problems.append(f"{bwrap}: {output}")
        reason = "; ".join(problems) or "no bubblewrap was found"
        raise WorkshopFailed(f"no sandbox can be made: {reason}", fix=NO_SANDBOX_FIX, code="SANDBOX_UNAVAILABLE")

    # ------------------------------------------------------------------------------------------------ internals

    def _places(self, name: str) -> Places:
        validate_name(name)
        return Places(self._root / name, inside=not self._unsafe)

    def _lock(self, name: str) -> Any:
        return _client.locked(self._directory(".locks") / f"{name}.lock")

    def _directory(self, name: str) -> Path:
        directory = self._root / name
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return directory

    def _own_uids(self) -> bool:
        return os.geteuid() == 0 and staging.usable_uids(*self._uid_range)

    def _first_uid(self) -> int | None:
        if os.geteuid() != 0 or self._unsafe:
            return None
        return self._uid_range[0] if self._own_uids() else NOBODY

    def _free_uid(self) -> int | None:
        first = self._first_uid()
        if first is None or first == NOBODY:
            return first
        taken = {json.loads(path.read_bytes())["uid"] for path in self._root.glob("*/workshop.json")}
        return next((uid for uid in range(first, self._uid_range[1] + 1) if uid not in taken), NOBODY)

    def _metadata(self, spec: WorkshopSpec) -> dict[str, object]:
        return {
            "campaign": spec.campaign,
            "ticket": spec.ticket,
            "created_at": datetime.now(UTC).isoformat(),
            "uid": self._free_uid(),
            "model_access": spec.model_access,
            "source": asdict(
                SourceConfig(str(spec.source.repository.absolute()), spec.source.branch, spec.source.commit)
            ),
            "bounds": asdict(BoundsConfig(**asdict(spec.resources))),
            "egress": list(spec.egress),
        }

    def _base_config(self, directory: Path, bwrap: str, uid: int | None) -> SupervisorConfig:
        return SupervisorConfig(
            directory=str(directory), bwrap=bwrap, python=sys.executable, uid=uid, mounts=self._mounts,
            ca_bundle=self._ca_bundle, git=shutil.which("git") or "git",
        )  # fmt: skip

    async def _make(self, places: Places, spec: WorkshopSpec) -> None:
        remove_tree(places.root)
        places.root.mkdir(parents=True, mode=0o700)
        # One user is given to one workshop: looked up and written down under one lock.
        async with self._lock("_users"):
            write_atomically(places.metadata, json.dumps(self._metadata(spec)).encode())

    async def _start(self, places: Places) -> None:
        values = json.loads(places.metadata.read_bytes())
        base = self._base_config(places.root, await self._find_bwrap(), values["uid"])
        config = replace(
            base,
            model_access=values["model_access"],
            source=SourceConfig(**values["source"]),
            bounds=BoundsConfig(**values["bounds"]),
            egress=replace(self._egress, hosts=(*self._egress.hosts, *values["egress"])),
            upstream=UpstreamConfig(**self._upstream_values()),
        )
        await _client.start(config)

    async def _alive(self, name: str) -> Places:
        """Its places, with a supervisor running. Raises `NotFound`, `WorkshopFailed`."""
        places = self._places(name)
        if places.metadata.exists() and places.supervisor_alive():
            return places
        if not self._root.exists():
            raise NotFound(f"no workshop {name!r}")
        async with self._lock(name):
            if not places.metadata.exists():
                raise NotFound(f"no workshop {name!r}")
            if not places.supervisor_alive():
                self._raise_failure(places)
                logger.info("workshop %s: starting its supervisor again", name)
                await self._start(places)
        return places

    def _raise_failure(self, places: Places, reason: str = "") -> None:
        reason = reason or read_state(places.state).failed
        if not reason:
            return
        code = "SANDBOX_UNAVAILABLE" if reason.startswith("no sandbox") else None
        raise WorkshopFailed(f"workshop {places.root.name!r}: {reason}", fix="create it again", code=code)

    async def _ask(self, name: str, message: Message, blob: bytes = b"") -> tuple[Message, bytes]:
        for _ in range(REVIVALS):
            places = await self._alive(name)
            try:
                return await _client.ask(places, message, blob)
            except _client.SupervisorGone:
                continue
        raise Unavailable(f"workshop {name!r} ends again and again", fix="see sandbox.log in its directory")

    def _upstream_values(self) -> dict[str, str]:
        if self._upstream is None:
            return asdict(UpstreamConfig())
        key = self._upstream.api_key
        return {"base_url": self._upstream.base_url, "api_key": key.get_secret_value() if key else ""}

    def _status(self, places: Places, reply: Message) -> WorkshopStatus:
        values = json.loads(places.metadata.read_bytes())
        return WorkshopStatus(
            name=places.root.name,
            phase=Phase(reply["phase"]),
            campaign=values["campaign"],
            ticket=values["ticket"],
            workdir=places.workdir,
            home=places.home,
            model_url=reply["model_url"],
            reason=reply["reason"],
            created_at=datetime.fromisoformat(values["created_at"]),
        )
