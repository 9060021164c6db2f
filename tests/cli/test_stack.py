"""Dagster's processes: started together, gone together, and clear about what went wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from atelier_dagster.cli.home import dagster_directory, prepare_home
from atelier_dagster.cli.stack import (
    ProcessEnded,
    Stack,
    StackOptions,
    cause_in,
    check_port_free,
    free_port,
    last_line,
    tail,
)
from atelier_dagster.factory.errors import AtelierError, InvalidInput, Refused
from tests.support.processes import free_ports
from tests.support.tiny import write_tiny


def options(home: Path, code: str = "") -> StackOptions:
    """A stack on the tiny definitions, or on other code."""
    asyncio.run(prepare_home(home))
    module = write_tiny(home / "code")
    if code:
        (home / "code" / f"{module}.py").write_text(code, "utf-8")
    (port,) = free_ports(1)
    paths = os.pathsep.join([str(Path.cwd()), str(home / "code")])
    return StackOptions(home=home, port=port, module=module, directory=home / "code", environment={"PYTHONPATH": paths})


def children() -> set[int]:
    """Processes that this one started and has not buried."""
    return {int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text("ascii").split()}


@pytest.mark.service
def test_everything_is_gone_afterwards_also_when_a_process_dies(tmp_path: Path) -> None:
    before = children()
    wanted = options(tmp_path)
    said: list[str] = []
    with Stack(wanted) as stack:
        stack.start(said.append)
        stack.check()
        assert len(children() - before) == 3
        word = json.loads((dagster_directory(tmp_path) / "webserver.json").read_bytes())
        assert word["url"] == stack.url
        with pytest.raises(Refused) as caught:
            check_port_free(wanted.port)
        assert caught.value.code == "PORT_TAKEN"
        os.kill(min(children() - before), signal.SIGKILL)
        with pytest.raises(ProcessEnded, match="ended with exit code -9"):
            while True:
                stack.check()
    assert children() == before
    assert not (dagster_directory(tmp_path) / "webserver.json").exists()
    assert "loading the definitions" in said
    check_port_free(wanted.port)


@pytest.mark.service
def test_definitions_that_do_not_load_say_why_and_leave_nothing(tmp_path: Path) -> None:
    before = children()
    with Stack(options(tmp_path, "raise RuntimeError('no such thing as a free lunch')")) as stack:
        with pytest.raises(AtelierError) as caught:
            stack.start()
        assert "RuntimeError: no such thing as a free lunch" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert children() == before


@pytest.mark.service
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    """Killed, it cannot stop them: the kernel tells them."""
    code = (
        "import subprocess, sys, os, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'atelier_dagster.cli._child', str(os.getpid()), 'wait',"
        " 'dagster', 'api', 'grpc'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    ended = os.pidfd_open(child) if Path(f"/proc/{child}").exists() else None
    if ended is not None:
        import select

        assert select.select([ended], [], [], 60.0)[0], "the child outlived its parent by a minute"
        os.close(ended)
    parent.stdout.close()


def test_a_taken_port_is_refused_with_another_on_offer() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Refused) as caught:
            check_port_free(port)
        assert "--port" in caught.value.fix
        assert free_port(port) > port
        with pytest.raises(Refused):
            free_port(port, tries=1)


def test_no_port_at_all_is_invalid() -> None:
    with pytest.raises(InvalidInput):
        check_port_free(70_000)


def test_the_cause_in_a_log_is_the_first_error_of_this_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("OldError: gone\n", "utf-8")
    since = log.stat().st_size
    with log.open("a") as file:
        file.write("Traceback:\n  x\nKeyError: 'cause'\n\nThe above\na.b.LoadError: consequence\n")
    assert cause_in(log, since) == "KeyError: 'cause'"
    assert cause_in(log, log.stat().st_size) == "no reason given"


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(str(n) for n in range(100)), "utf-8")
    assert tail(log, 2) == "98\n99"
    assert last_line("a\n b \n\n") == "b"
    assert last_line("") == "no reason given"
