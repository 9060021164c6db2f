"""The process that owns one workshop: its sandbox, its commands, its ways out, and the socket it is asked over.

It outlives whoever started it. Standard library only, so that it starts quickly; the ways out are given to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from atelier_dagster.sandbox import bounds, bubblewrap, places
from atelier_dagster.sandbox.channel import GuestChannel, GuestError, GuestGone
from atelier_dagster.sandbox.checkout import CHECKOUT_LIMIT, GITCONFIG, CheckoutFailed, check_out
from atelier_dagster.sandbox.config import SupervisorConfig, UpstreamConfig
from atelier_dagster.sandbox.execs import Exec, ExecStore, Outcome
from atelier_dagster.sandbox.frames import FrameError, Message, read_frame, write_frame
from atelier_dagster.sandbox.places import Places
from atelier_dagster.sandbox.runner import Runner, limits, shared_memory

Connection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
START_LIMIT = 30.0
MAX_RUNNING = 64
"""Commands at the same time."""
NOBODY = 65534
DIRECTORY_INTERVAL = 3.0
GONE = "the sandbox ended while the command ran"


@dataclass(frozen=True)
class Ports:
    """Where the ways out listen, inside."""

    proxy: int
    model: int = 0


class Refusal(Exception):
    """A request that is answered with an error code."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class AlreadyRunning(Exception):
    """Another supervisor owns the workshop."""


class Supervisor:
    """One workshop, while this process lives."""

    def __init__(
        self,
        config: SupervisorConfig,
        *,
        proxy: Connection,
        model: Connection,
        set_upstream: Callable[[UpstreamConfig], None],
    ) -> None:
        self.config = config
        self.places = Places(Path(config.directory), inside=bool(config.bwrap))
        self.state = places.read_state(self.places.state)
        self.execs = ExecStore(self.places.execs)
        self._connections = {"proxy": proxy, "model": model}
        self._set_upstream = set_upstream
        self._running: dict[str, Exec] = {}
        self._settled = asyncio.Event()
        self._stop = asyncio.Event()
        self._environment: dict[str, str] = {}
        self._ports = Ports(0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._carrying: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------------------------------ life

    def start_sandbox(self) -> None:
        """Take the workshop, and start process 1. Before the event loop, while there is one thread.

        Raises `AlreadyRunning`.
        """
        self._lock = self.places.lock.open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning(self.config.directory) from error
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        self.execs.recover()
        self.state.suspended, self.state.failed, self.state.ended = False, "", ""
        self.places.prepare(self.config.uid, fresh=not self.state.ready)
        ours, theirs = socket.socketpair()
        self._guest_socket = ours
        log = os.open(self.places.sandbox_log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._sandbox = self._launch(theirs.fileno(), log)
        theirs.close()
        os.close(log)

    def _launch(self, control: int, log: int) -> int:
        config, here = self.config, self.places
        if not config.bwrap:
            return bubblewrap.start_unsafe(config.python, control=control, log=log)
        sandbox = bubblewrap.Sandbox(
            bwrap=config.bwrap, state=str(here.root), home=str(here.home_dir), workdir=str(here.workdir_dir),
            tmp=str(here.tmp_dir), python=config.python, uid=config.uid, mounts=config.mounts,
            ca_bundle=config.ca_bundle, shm_bytes=shared_memory(config.bounds),
        )  # fmt: skip
        return bubblewrap.start(sandbox, bubblewrap.guest_command(config.python, control), control=control, log=log)

    def end_sandbox(self) -> None:
        """Kill process 1, and with it all in its namespace; wait until that is done.

        Without a namespace it is left to kill everything itself, which it does when its control socket closes.
        """
        limit = time.monotonic() + (0 if self.config.bwrap else 5)
        while time.monotonic() < limit:
            if os.waitpid(self._sandbox, os.WNOHANG)[0]:
                return
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._sandbox, signal.SIGKILL)
        os.waitpid(self._sandbox, 0)

    async def serve(self, ready: Callable[[], None]) -> None:
        """Serve until the workshop is shut down or its sandbox ends; `ready` is called once it can be asked."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        guest = GuestChannel(self._guest_socket, self._on_event)
        self.runner = Runner(guest, limits(self.config.bounds, own_user=self.config.uid not in {None, NOBODY}))
        with places.short_path(self.places.control) as path:
            server = await asyncio.start_unix_server(self._connection, path)
        ready()
        receiving = self._spawn(self._receive(guest))
        self._spawn(self._provision())
        self._spawn(bounds.watch_processes(self.runner, self.config.bounds))
        self._spawn(bounds.watch_disk(self.runner, self.config.bounds.disk_mib, self.places.writable))
        self._spawn(self._watch_directory())
        await self._stop.wait()
        server.close()
        if self.places.root.exists():
            self._save_state()
        receiving.cancel()

    async def _watch_directory(self) -> None:
        """End when the workshop's directory was removed by hand: nobody could ask for this process any more."""
        while places.same_file(self._lock.fileno(), self.places.lock):  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(DIRECTORY_INTERVAL)
        self._stop.set()

    def _on_event(self, event: Message) -> None:
        self.runner.on_event(event)

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _receive(self, guest: GuestChannel) -> None:
        await guest.run()
        log = places.tail(self.places.sandbox_log)
        if not self._settled.is_set():
            self._fail(f"no sandbox can be made: {log or 'bubblewrap ended'}")
        self.state.ended = f"the sandbox ended: {log}" if log else "the sandbox ended"
        self.runner.abandon(GONE)
        if self._carrying:
            await asyncio.wait(self._carrying, timeout=5)
        self._stop.set()

    async def _provision(self) -> None:
        try:
            async with asyncio.timeout(CHECKOUT_LIMIT + START_LIMIT):
                await self._open_ways_out()
                await self._first_content()
        except (GuestGone, GuestError, CheckoutFailed, TimeoutError, OSError) as error:
            if not self.state.failed:
                self._fail(str(error) or "it took too long to start")
            self._stop.set()
            return
        self.state.ready = True
        self._save_state()
        self._settled.set()

    async def _first_content(self) -> None:
        if self.state.ready:
            return
        call = self.runner.channel.call
        await call({"op": "put", "base": self.places.home, "path": ".gitconfig"}, GITCONFIG.encode())
        await check_out(self.config.source, self.config.git, self._run_internal)

    async def _open_ways_out(self) -> None:
        inside = bool(self.config.bwrap)
        proxy = await self._listen("proxy", 3128 if inside else 0)
        model = await self._listen("model", 3129 if inside else 0) if self.config.model_access else 0
        self._ports = Ports(proxy, model)
        self._set_upstream(self.config.upstream)
        self._environment = bubblewrap.environment(
            f"http://127.0.0.1:{proxy}",
            self.places.environment(),
            python=self.config.python,
            ca_bundle=self.config.ca_bundle if inside else "",
        )

    async def _listen(self, way: str, port: int) -> int:
        """Let process 1 listen, in the network namespace that it is in, and serve that socket from out here."""
        reply, _, fds = await self.runner.channel.call({"op": "listen", "port": port}, timeout=START_LIMIT)
        listener = socket.socket(fileno=fds[0])
        await asyncio.start_server(self._connections[way], sock=listener, limit=65536)
        return reply["port"]

    def _fail(self, reason: str) -> None:
        self.state.failed = reason
        self._save_state()
        self._settled.set()

    def _save_state(self) -> None:
        places.write_atomically(self.places.state, json.dumps(asdict(self.state)).encode())

    # --------------------------------------------------------------------------------------------- requests

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            message, blob = await read_frame(reader)
            try:
                await self._answer(message, blob, writer)
            except Refusal as error:
                await write_frame(writer, {"error": error.code, "detail": str(error)})
            except GuestError as error:
                await write_frame(writer, {"error": error.kind, "detail": str(error)})
            except (GuestGone, TimeoutError) as error:
                await write_frame(writer, {"error": "unavailable", "detail": str(error) or "no answer in time"})
        except (ConnectionError, asyncio.IncompleteReadError, FrameError):
            pass  # whoever asked is gone; what was asked for goes on
        finally:
            writer.close()

    async def _answer(self, message: Message, blob: bytes, writer: asyncio.StreamWriter) -> None:
        match message["op"]:
            case "status":
                await write_frame(writer, self._status())
            case "wait":
                await self._settled.wait()
                await write_frame(writer, self._status())
            case "exec":
                await self._exec(message, blob, writer)
            case "put" | "get" as operation:
                await self._file(operation, message, blob, writer)
            case "suspend" | "resume" as operation:
                await self._set_suspended(operation == "suspend")
                await write_frame(writer, self._status())
            case "cancel":
                if (command := self._running.get(message["exec"])) is not None:
                    self.runner.kill(command, message["reason"])
                await write_frame(writer, {})
            case "upstream":
                self._set_upstream(UpstreamConfig(**message["upstream"]))
                await write_frame(writer, {})
            case "shutdown":
                await write_frame(writer, {})
                self._stop.set()
            case operation:
                raise Refusal("invalid", f"no operation {operation!r}")

    def _status(self) -> Message:
        phase = "Failed" if self.state.failed else "Suspended" if self.state.suspended else "Running"
        model = f"http://127.0.0.1:{self._ports.model}/v1" if self._ports.model else ""
        return {
            "phase": phase if self._settled.is_set() else "Provisioning",
            "reason": self.state.failed,
            "model_url": model,
        }

    async def _set_suspended(self, suspended: bool) -> None:
        await self._settled.wait()
        if self.state.failed or suspended == self.state.suspended:
            return
        await (self.runner.freeze() if suspended else self.runner.thaw())
        self.state.suspended = suspended
        self._save_state()

    def _usable(self) -> None:
        if self.state.failed:
            raise Refusal("failed", self.state.failed)
        if self.state.suspended:
            raise Refusal("suspended", "the workshop is suspended")

    async def _file(self, operation: str, message: Message, blob: bytes, writer: asyncio.StreamWriter) -> None:
        await self._settled.wait()
        if self.state.failed:
            raise Refusal("failed", self.state.failed)
        base = self.places.home if operation == "put" else self.places.workdir
        request = {"op": operation, "base": base, "path": message["path"], "limit": message.get("limit", 0)}
        _, data, _ = await self.runner.channel.call(request, blob)
        await write_frame(writer, {}, data)

    # ------------------------------------------------------------------------------------------------ execs

    async def _exec(self, message: Message, stdin: bytes, writer: asyncio.StreamWriter) -> None:
        await self._settled.wait()
        command = self._running.get(message["exec"]) or self.execs.load(message["exec"])
        command = command or self._begin(message, stdin)
        async for stream, data in command.follow():
            await write_frame(writer, {"event": stream}, data)
        assert command.outcome is not None
        await write_frame(writer, {"event": "exit", "outcome": asdict(command.outcome)})

    def _begin(self, message: Message, stdin: bytes) -> Exec:
        """Claim the id and start; no await between the look-up and this, so no second start of the same id."""
        self._usable()
        if len(self._running) >= MAX_RUNNING:
            raise Refusal("unavailable", f"{MAX_RUNNING} commands are running already")
        try:
            key = self.execs.claim(message["exec"])
        except (OverflowError, OSError) as error:
            raise Refusal("failed", str(error)) from error
        if key is None:
            raise Refusal("unavailable", "the result of this command could not be kept")
        command = Exec(message["exec"], key, message["output_limit"])
        self._running[command.id] = command
        task = self._spawn(self._carry_out(command, message, stdin))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        return command

    async def _carry_out(self, command: Exec, message: Message, stdin: bytes) -> None:
        environment = {**self._environment, **message["env"]}
        cwd = os.path.join(self.places.workdir, message["cwd"])  # noqa: PTH118 - a path inside, not of the host
        await self.runner.run(command, message["argv"], environment, cwd, stdin, message["timeout"])
        outcome = command.finish()
        try:
            self.execs.save(command, outcome)
        except OSError as error:
            outcome.reason += f" (the result could not be kept: {error})"
        command.outcome = outcome
        self._running.pop(command.id)
        command.announce()

    async def _run_internal(self, argv: list[str], stdin: bytes | int) -> tuple[Exec, Outcome]:
        command = Exec("", f"internal-{secrets.token_hex(8)}", 65536)
        await self.runner.run(command, argv, self._environment, self.places.workdir, stdin, CHECKOUT_LIMIT)
        return command, command.finish()


def run(supervisor: Supervisor, ready: Callable[[], None]) -> None:
    """The whole life of a supervisor. Raises `AlreadyRunning`."""
    supervisor.start_sandbox()
    asyncio.run(supervisor.serve(ready))
    supervisor.end_sandbox()


def detach(log: Path) -> None:
    """Leave the caller's session and files: a fresh log for standard output and error, nothing to read."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    for number, fd in ((0, null), (1, target), (2, target)):
        os.dup2(fd, number)
