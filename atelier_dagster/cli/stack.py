"""Dagster's processes on this machine: code server, webserver, daemon. Started together, watched, stopped together."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import yaml

from atelier_dagster.cli.home import dagster_directory, forget_address, installation, note_address
from atelier_dagster.factory.errors import AtelierError, InvalidInput, NotFound, Refused, TimedOut, Unavailable
from atelier_dagster.orchestration.client import LOCATION, DagsterClient

_NEEDED_DAEMONS = frozenset({"SENSOR", "QUEUED_RUN_COORDINATOR"})
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.1
_LOG_BYTES = 20_000_000
_TAIL_LINES = 25
_CAUSE_BYTES = 1_000_000
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Warning|Exit)\b.*", re.MULTILINE)

Progress = Callable[[str], None]


class ProcessEnded(AtelierError):
    """One of Dagster's processes ended though nobody asked it to."""

    code = "DAGSTER_ENDED"

    def __init__(self, name: str, how: str, log: Path, since: int) -> None:
        super().__init__(f"Dagster's {name} {how}: {cause_in(log, since)}", fix=f"read {log}")
        self.details = tail(log)


@dataclass(frozen=True)
class StackOptions:
    """What to start. `module` holds the definitions; `reload` keeps the code server replaceable from the UI."""

    home: Path
    port: int
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to this process's environment; an empty value takes a variable away."""
    directory: Path | None = None
    """Working directory of the processes (where `atelier.toml` is read); this process's own by default."""
    module: str = "atelier_dagster.definitions"
    reload: bool = False
    start_timeout: float = 120.0


@dataclass
class _Process:
    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    since: int
    """Where in the log its own part begins."""


class Stack:
    """A context manager: inside it, Dagster runs; on leaving, however that happens, its processes are gone.

    `prepare_home` must have been called. Not for use from several threads: the processes end with the thread that
    started them.
    """

    def __init__(self, options: StackOptions) -> None:
        self._options = options
        self._processes: list[_Process] = []
        self._logs = options.home.resolve() / "logs"
        self._runtime: Path | None = None
        self.url = f"http://127.0.0.1:{options.port}"

    @property
    def logs(self) -> Path:
        """The directory with one log a process."""
        return self._logs

    def __enter__(self) -> Stack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, progress: Progress = lambda _: None) -> None:
        """Start everything and wait until runs can be launched.

        Raises `Refused` (port taken), `ProcessEnded`, `InvalidInput` (the definitions do not load), `TimedOut`.
        """
        deadline = time.monotonic() + self._options.start_timeout
        check_port_free(self._options.port)
        self._logs.mkdir(parents=True, exist_ok=True)
        self._runtime = Path(tempfile.mkdtemp(prefix="atelier-"))  # a socket's path may have 107 bytes at most
        try:
            self._start_processes(progress, deadline)
            with DagsterClient(self.url, timeout=10.0) as client:
                self._wait_webserver(client, progress, deadline)
            note_address(self._options.home, self.url)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process: politely, then after a while by force. Stopping twice is fine."""
        with _no_interrupts():
            forget_address(self._options.home)
            for process in reversed(self._processes):
                _signal(process, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_SECONDS
            for process in reversed(self._processes):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.popen.wait(max(0.1, deadline - time.monotonic()))
                _signal_group(process, signal.SIGKILL)
                process.popen.wait()
                if process.popen.stdin:
                    process.popen.stdin.close()
            self._processes.clear()
            if self._runtime is not None:
                shutil.rmtree(self._runtime, ignore_errors=True)
                self._runtime = None

    def check(self) -> None:
        """Raise `ProcessEnded` if one of the processes is gone."""
        for process in self._processes:
            code = process.popen.poll()
            if code is not None:
                raise ProcessEnded(process.name, f"ended with exit code {code}", process.log, process.since)

    # ------------------------------------------------------------------------------------------------- internals

    def _start_processes(self, progress: Progress, deadline: float) -> None:
        assert self._runtime is not None
        code_socket = self._runtime / "code.sock"
        workspace = self._runtime / "workspace.yaml"
        server = {"grpc_server": {"socket": str(code_socket), "location_name": LOCATION}}
        workspace.write_text(yaml.safe_dump({"load_from": [server]}), "utf-8")
        command = ["code-server", "start"] if self._options.reload else ["api", "grpc"]
        where = str(self._directory())
        progress("loading the definitions")
        self._spawn(
            "code-server", "now", "dagster", *command, "--socket", str(code_socket), "--module-name",
            self._options.module, "--working-directory", where, "--location-name", LOCATION,
            "--inject-env-vars-from-instance",
        )  # fmt: skip
        waiting = [
            self._spawn(
                "webserver", "wait", "dagster-webserver", "--host", "127.0.0.1", "--port", str(self._options.port),
                "--workspace", str(workspace), "--dagster-log-level", "warning",
            ),
            self._spawn("daemon", "wait", "dagster-daemon", "run", "--workspace", str(workspace)),
        ]  # fmt: skip
        self._wait_code_server(code_socket, deadline)
        progress("starting the webserver and the daemon")
        for process in waiting:
            _say_go(process)

    def _spawn(self, name: str, gate: str, *command: str) -> _Process:
        log = self._logs / f"{name}.log"
        argv = [sys.executable, "-m", "atelier_dagster.cli._child", str(os.getpid()), gate, *command]
        with _opened(log) as output:
            since = log.stat().st_size
            popen = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                cwd=self._directory(), env=self._environment(), start_new_session=True,
            )  # fmt: skip
        process = _Process(name, popen, log, since)
        self._processes.append(process)
        return process

    def _directory(self) -> Path:
        return (self._options.directory or Path.cwd()).resolve()

    def _environment(self) -> dict[str, str]:
        home = self._options.home.resolve()
        paths = [str(installation()), *filter(None, [os.environ.get("PYTHONPATH")])]
        wanted = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            "DAGSTER_HOME": str(dagster_directory(home)),
            "ATELIER_HOME": str(home),
            **self._options.environment,
        }
        return {name: value for name, value in wanted.items() if value}

    def _wait_code_server(self, address: Path, deadline: float) -> None:
        import grpc
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        with grpc.insecure_channel(f"unix:{address}") as channel:
            check = cast(Any, health_pb2_grpc.HealthStub(channel)).Check
            request = health_pb2.HealthCheckRequest(service="DagsterApi")
            for _ in self._polls(deadline, "the code server"):
                if not address.exists():
                    continue
                try:
                    answer = check(request, timeout=2.0)
                except grpc.RpcError:
                    continue
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return

    def _wait_webserver(self, client: DagsterClient, progress: Progress, deadline: float) -> None:
        for _ in self._polls(deadline, "the webserver"):
            if client.is_up():
                break
        progress("waiting for the definitions")
        for _ in self._polls(deadline, "the definitions"):
            error = client.load_error()
            if error:
                raise InvalidInput(
                    f"the definitions do not load: {last_line(error)}", fix=f"read {self._logs / 'code-server.log'}"
                )
            if error is not None:
                break
        progress("waiting for the daemon")
        for _ in self._polls(deadline, "the daemon"):
            if {daemon.kind for daemon in client.daemons() if daemon.healthy} >= _NEEDED_DAEMONS:
                break

    def _polls(self, deadline: float, what: str) -> Iterator[None]:
        """Until the deadline; while all processes live."""
        while True:
            self.check()
            yield
            if time.monotonic() > deadline:
                limit = self._options.start_timeout
                raise TimedOut(
                    f"{what} did not become ready within {limit:.0f} s", fix=f"read the logs in {self._logs}"
                )
            time.sleep(_POLL_SECONDS)


def check_port_free(port: int) -> None:
    """Raise `Refused` when something listens on the port already."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OverflowError:
            raise InvalidInput(f"{port} is no port", fix="use one between 1024 and 65535") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise Refused(
                f"port {port} cannot be used: {reason}", fix="use another one: --port N", code="PORT_TAKEN"
            ) from None


def free_port(wanted: int = 3000, tries: int = 50) -> int:
    """The first port from `wanted` on that nothing listens on."""
    for port in range(wanted, wanted + tries):
        try:
            check_port_free(port)
        except Refused:
            continue
        return port
    raise Refused(
        f"none of the ports {wanted}-{wanted + tries - 1} is free", fix="name one: --port N", code="PORT_TAKEN"
    )


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 20_000))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist") from None
    return "\n".join(text.splitlines()[-lines:])


def cause_in(log: Path, since: int = 0) -> str:
    """The first exception in a log from a position on: what others were raised from."""
    with log.open("rb") as file:
        file.seek(since)
        text = file.read(_CAUSE_BYTES).decode(errors="replace")
    found = _EXCEPTION.search(text)
    return found[0][:500] if found else last_line(text)


def last_line(text: str) -> str:
    """The last line that says something: in an error of Dagster's, the one with the cause."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:500] if lines else "no reason given"


def _say_go(process: _Process) -> None:
    stream: IO[bytes] | None = process.popen.stdin
    assert stream is not None
    try:
        stream.write(b"go\n")
        stream.flush()
    except BrokenPipeError:
        raise ProcessEnded(process.name, "ended at once", process.log, process.since) from None


def _signal(process: _Process, number: signal.Signals) -> None:
    if process.popen.poll() is None:
        process.popen.send_signal(number)


def _signal_group(process: _Process, number: signal.Signals) -> None:
    """Also what the process started and left behind; each process leads a session of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.popen.pid, number)


@contextlib.contextmanager
def _opened(log: Path) -> Generator[IO[bytes]]:
    """The log to append to, begun anew when it has grown too long."""
    try:
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            log.unlink()
        file = log.open("ab")
    except OSError as error:
        raise Unavailable(
            f"{log} cannot be written: {error.strerror}", fix="mend the directory's permissions"
        ) from None
    with file:
        yield file


@contextlib.contextmanager
def _no_interrupts() -> Generator[None]:
    """A second Ctrl-C must not leave processes behind."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
