"""Attempts to use up the machine from inside a workshop."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from atelier_dagster.sandbox.bounds import disk_usage
from atelier_dagster.sandbox.runner import counts_per_namespace
from atelier_dagster.workshops import LocalWorkshops
from tests.support.workshops import run, sh

Small = tuple[LocalWorkshops, str]
service = pytest.mark.service


@service
async def test_memory(small: Small) -> None:
    done = await run(*small, "python3", "-c", "x = []\nwhile True: x.append(bytearray(5_000_000))", timeout=60)
    assert (done.exit_code, done.timed_out) == (None, False)
    assert done.reason == "memory limit of 200 MiB reached"
    assert (await run(*small, "echo", "fine")).stdout == b"fine\n"


@service
async def test_memory_spread_over_processes(small: Small) -> None:
    one = "x = bytearray(30_000_000)\nfor i in range(0, len(x), 4096): x[i] = 1\nimport time; time.sleep(60)"
    done = await sh(*small, f'for i in 1 2 3 4 5 6 7 8 9 10; do python3 -c "{one}" & done; wait', timeout=60)
    assert done.reason == "memory limit of 200 MiB reached"


@service
async def test_a_heavy_command_dies_and_a_light_one_does_not(small: Small) -> None:
    light = asyncio.create_task(sh(*small, "until [ -e /tmp/over ]; do sleep 0.05; done; echo survived", timeout=60))
    heavy = await run(*small, "python3", "-c", "x = []\nwhile True: x.append(bytearray(5_000_000))", timeout=60)
    await run(*small, "touch", "/tmp/over")
    assert "memory" in heavy.reason
    assert (await light).stdout == b"survived\n"


@service
async def test_shared_memory(small: Small) -> None:
    fill = "for i in 1 2 3 4 5 6 7 8; do head -c 40000000 /dev/zero > /dev/shm/$i; done; rm -f /dev/shm/*"
    assert b"No space left" in (await sh(*small, fill)).stderr


@service
@pytest.mark.parametrize(
    "bomb", [":(){ :|:& };:; wait", "b() { setsid sh -c 'while :; do sleep 60 & done' & }; b; b; sleep 1"]
)
async def test_a_fork_bomb_stays_inside_and_dies_with_its_command(small: Small, bomb: str) -> None:
    await run(*small, "bash", "-c", bomb, timeout=2, output_limit=1000)
    after = await sh(*small, "ls -d /proc/[0-9]* | wc -l", timeout=20)
    assert int(after.stdout) <= 6


@service
async def test_disk(small: Small) -> None:
    script = "i=0; while head -c 5000000 /dev/urandom > ~/f$i; do i=$((i+1)); done; sleep 60"
    done = await sh(*small, script, timeout=60)
    assert (done.exit_code, done.reason) == (None, "disk limit of 50 MiB reached")
    assert (await sh(*small, "rm -f ~/f*; sleep 1.5; echo cleaned")).stdout == b"cleaned\n"


@service
async def test_one_large_file(small: Small) -> None:
    done = await sh(*small, "exec head -c 200000000 /dev/zero > ~/large", timeout=60)
    assert done.exit_code is None
    assert "signal 25" in done.reason or "disk" in done.reason
    await sh(*small, "rm -f ~/large")


@service
async def test_cpu_time(small: Small) -> None:
    done = await sh(*small, "while :; do :; done", timeout=60)
    assert done.exit_code is None
    assert done.reason in {"killed by signal 9", "killed by signal 24"}


def test_disk_usage_counts_entries_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "file").write_bytes(b"x" * 100_000)
    base = disk_usage([tmp_path])
    assert base >= 100_000
    (tmp_path / "link").symlink_to("/usr")
    assert base < disk_usage([tmp_path]) < base + 10_000


def test_a_tree_too_deep_to_walk_counts_as_infinite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(30):
        Path("d" * 200).mkdir()
        monkeypatch.chdir("d" * 200)
    assert disk_usage([tmp_path]) == math.inf


@pytest.mark.parametrize(
    ("release", "expected"), [("4.19.0-1-amd64", False), ("5.13.19", False), ("5.14.0", True), ("6.18.44-fc", True)]
)
def test_kernels_that_count_processes_per_namespace(release: str, expected: bool) -> None:
    assert counts_per_namespace(release) is expected
