"""What a local workshop costs: time until it is ready, and an exec's round trip beside a bare subprocess."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from atelier_dagster.ports import ExecRequest, GitRemote, RepoSource, WorkshopSpec
from atelier_dagster.workshops import LocalWorkshops

EXECS = 50
STARTS = 5


def repository(root: Path) -> RepoSource:
    """A bare repository of one commit with a few hundred files."""
    work, bare = root / "work", root / "bare.git"
    work.mkdir()
    for number in range(300):
        (work / f"file{number}.txt").write_text(f"{number}\n" * 50)
    identity = ["-c", "user.name=b", "-c", "user.email=b@b.invalid"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], [*identity, "commit", "-q", "-m", "files"]):
        subprocess.run(["git", "-C", str(work), *arguments], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(bare)], check=True)
    done = subprocess.run(["git", "-C", str(work), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return RepoSource(bare, GitRemote(str(bare)), "main", done.stdout.strip())


async def clocked(work: Callable[[], Awaitable[object]]) -> float:
    """Seconds that something takes."""
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


async def bare_subprocess() -> None:
    """The floor: a process with its output captured, by asyncio alone."""
    process = await asyncio.create_subprocess_exec("true", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    await process.communicate()


async def bare_clone(source: RepoSource, target: Path) -> None:
    """The floor of a checkout."""
    process = await asyncio.create_subprocess_exec("git", "clone", "-q", str(source.repository), str(target))
    await process.wait()


async def measure(root: Path) -> None:
    """Print all figures."""
    source = repository(root)
    workshops = LocalWorkshops(root / "workshops")

    async def start(name: str) -> None:
        await workshops.create(WorkshopSpec(name, source, "benchmark", "benchmark", model_access=True))
        await workshops.wait_running(name)

    cold = await clocked(lambda: start("cold"))
    warm = [await clocked(lambda n=n: start(f"warm{n}")) for n in range(STARTS)]
    clone = [await clocked(lambda n=n: bare_clone(source, root / f"clone{n}")) for n in range(STARTS)]
    floor = [await clocked(bare_subprocess) for _ in range(EXECS)]
    trips = [await clocked(lambda n=n: workshops.exec("cold", ExecRequest(f"e{n}", ("true",)))) for n in range(EXECS)]
    found = [await clocked(lambda: workshops.exec("cold", ExecRequest("e0", ("true",)))) for _ in range(EXECS)]
    ends = [await clocked(lambda n=n: workshops.delete(f"warm{n}")) for n in range(STARTS)]
    await workshops.delete("cold")
    report("ready, first (with a trial sandbox)", [cold], clone, "git clone")
    report("ready, warm", warm, clone, "git clone")
    report("exec round trip", trips, floor, "subprocess")
    report("exec found again", found, floor, "subprocess")
    report("delete", ends, clone, "git clone")


def report(what: str, values: list[float], floor: list[float], beside: str) -> None:
    """One line: median, and its ratio to the floor."""
    median, base = statistics.median(values), statistics.median(floor)
    print(f"{what:38} {median * 1000:8.1f} ms   {median / base:6.1f} x {beside} ({base * 1000:.1f} ms)")


def main() -> None:
    """Measure in a scratch directory."""
    with tempfile.TemporaryDirectory() as scratch:
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        asyncio.run(measure(Path(scratch)))


if __name__ == "__main__":
    main()
