"""Attempts to reach, from inside a workshop, what is not its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from pathlib import Path

import pytest

from atelier_dagster.workshops import LocalWorkshops
from tests.support.workshops import run, sh

pytestmark = pytest.mark.service
Prison = tuple[LocalWorkshops, str, Path]


async def python(prison: Prison, script: str) -> str:
    """Run Python inside; gives what it printed, errors included."""
    done = await run(prison[0], prison[1], "python3", "-c", script)
    return (done.stdout + done.stderr).decode()


async def test_host_files_are_not_there(prison: Prison, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    secret.chmod(0o644)
    paths = [
        secret,
        Path.home() / ".ssh",
        Path("/etc/shadow"),
        Path("/var/lib"),
        Path(__file__),
        prison[2],
        Path("/sys"),
    ]
    script = 'for p in "$@"; do test -e "$p" && echo "$p"; done; true'
    done = await run(prison[0], prison[1], "sh", "-c", script, "sh", *map(str, paths))
    assert done.stdout == b""


async def test_only_what_is_needed_of_etc_is_there(prison: Prison) -> None:
    done = await sh(prison[0], prison[1], "ls /etc; cat /etc/passwd; hostname")
    assert b"shadow" not in done.stdout
    assert b"sudoers" not in done.stdout
    assert b"agent:x:1000" in done.stdout
    assert done.stdout.endswith(b"workshop\n")


async def test_launchers_of_browsers_find_their_configuration(prison: Prison) -> None:
    for name in filter(shutil.which, ("chromium", "chromium-browser")):
        done = await sh(prison[0], prison[1], f"{name} --version")
        assert done.exit_code == 0, done.stderr


async def test_the_system_is_read_only(prison: Prison) -> None:
    script = (
        "for d in / /usr /etc /dev /run /var /home /proc /opt; do touch $d/x 2>/dev/null && echo wrote $d; done; true"
    )
    assert (await sh(prison[0], prison[1], script)).stdout == b""


async def test_host_processes_are_invisible_and_cannot_be_signalled(prison: Prison) -> None:
    done = await sh(prison[0], prison[1], f"cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'; kill -0 {os.getpid()}; echo $?")
    assert b"pytest" not in done.stdout
    assert done.stdout.endswith(b"1\n")


async def test_host_services_cannot_be_reached(prison: Prison) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        addresses = ["127.0.0.1", "::1", *_own_addresses()]
        script = f"""
import socket
for address in {addresses!r}:
    try:
        socket.create_connection((address, {port}), timeout=1)
        print("reached", address)
    except OSError:
        pass
"""
        assert await python(prison, script) == ""
        # Nor through the proxy, by address or by name.
        for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "169.254.169.254"):
            proxied = f"""
import socket
s = socket.create_connection(("127.0.0.1", 3128))
s.sendall(b"CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\n")
print(s.recv(100).split()[1].decode())
"""
            assert await python(prison, proxied) == "403\n"
    log = prison[0].egress_log(prison[1])
    assert {entry["decision"] for entry in log} == {"deny"}
    assert log[-1]["host"] == "169.254.169.254"


def _own_addresses() -> list[str]:
    found = socket.getaddrinfo(socket.gethostname(), None)
    return sorted({str(entry[4][0]) for entry in found} - {"127.0.0.1", "::1"})


async def test_the_only_interface_is_loopback_and_names_do_not_resolve(prison: Prison) -> None:
    script = "import socket\nprint([n for _, n in socket.if_nameindex()])\nprint(socket.gethostbyname('localhost'))"
    assert await python(prison, script) == "['lo']\n127.0.0.1\n"
    assert "gaierror" in await python(prison, "import socket; socket.gethostbyname('example.com')")


async def test_abstract_sockets_of_the_host_are_out_of_reach(prison: Prison) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0atelier-test-abstract")
        server.listen()
        script = "import socket; socket.socket(socket.AF_UNIX).connect('\\0atelier-test-abstract')"
        assert "ConnectionRefusedError" in await python(prison, script)


async def test_other_workshops_are_out_of_reach(prison: Prison) -> None:
    backend, name, root = prison
    await sh(backend, "pm-other", "echo theirs > ~/private; chmod 644 ~/private; chmod 755 ~")
    script = f"find / -name private -not -path '/usr/*' 2>/dev/null; cat {root}/pm-other/data/home/private"
    done = await sh(backend, name, script)
    assert done.stdout == b""


async def test_there_is_no_container_socket_and_no_device(prison: Prison) -> None:
    script = "find / -xdev -type s 2>/dev/null; ls /var/run/docker.sock /run/docker.sock 2>/dev/null; ls /dev"
    done = await sh(prison[0], prison[1], script)
    known = "console core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    assert set(done.stdout.decode().split()) <= set(known.split())
    refused = "import os, stat\nos.mknod('/tmp/d', 0o600 | stat.S_IFBLK, os.makedev(8, 0))"
    assert "PermissionError" in await python(prison, refused)


async def test_there_are_no_privileges_and_none_to_be_had(prison: Prison) -> None:
    done = await sh(prison[0], prison[1], "grep -E '^(Cap|NoNewPrivs)' /proc/self/status; unshare -Ur true; echo $?")
    lines = done.stdout.decode().split("\n")
    assert {line.split()[1] for line in lines if line.startswith("Cap") and "Bnd" not in line} == {"0" * 16}
    assert "NoNewPrivs:\t1" in lines
    assert lines[-2] != "0"
    assert (await sh(prison[0], prison[1], "mount -t tmpfs none /tmp")).exit_code != 0
    assert (await sh(prison[0], prison[1], "mount -o remount,rw /usr")).exit_code != 0


async def test_process_1_cannot_be_killed_stopped_or_traced(prison: Prison) -> None:
    await sh(prison[0], prison[1], "kill -9 1; kill -STOP 1; kill -TERM 1; kill -INT 1")
    for path in ("mem", "environ", "fd/9", "maps"):
        assert "PermissionError" in await python(prison, f"open('/proc/1/{path}', 'rb').read(1)")
    assert (await sh(prison[0], prison[1], "echo alive")).stdout == b"alive\n"


async def test_killing_the_keeper_ends_the_command_without_an_exit_code(prison: Prison) -> None:
    done = await sh(prison[0], prison[1], "setsid sleep 76543 & kill -9 $PPID; sleep 60", timeout=30)
    assert (done.exit_code, done.timed_out) == (None, False)
    assert "keeper" in done.reason
    listing = await sh(prison[0], prison[1], "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert b"sleep 76543" not in listing.stdout


async def test_stopping_the_keeper_does_not_stop_the_time_limit(prison: Prison) -> None:
    done = await sh(prison[0], prison[1], "kill -STOP $PPID; sleep 60", timeout=0.5)
    assert (done.exit_code, done.timed_out) == (None, True)


async def test_no_terminal_to_type_into(prison: Prison) -> None:
    done = await sh(prison[0], prison[1], "tty; : > /dev/tty")
    assert b"not a tty" in done.stdout
    assert done.exit_code != 0


async def test_descriptors_of_the_host_are_not_inherited(prison: Prison) -> None:
    done = await sh(prison[0], prison[1], "ls /proc/self/fd")
    assert done.stdout.split() == [b"0", b"1", b"2", b"3"]  # the last one is of ls itself


async def test_many_commands_at_once_are_apart(prison: Prison) -> None:
    results = await asyncio.gather(*(sh(prison[0], prison[1], f"echo {i}; exit {i}") for i in range(20)))
    assert [(result.exit_code, result.stdout) for result in results] == [(i, f"{i}\n".encode()) for i in range(20)]
