"""What every workshop backend must do, whatever it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from atelier_dagster.factory.errors import InvalidInput, NotFound, WorkshopFailed
from atelier_dagster.ports import ExecEvent, Phase, RepoSource, Workshops
from tests.support.workshops import ready, request, run, sh, spec_for, until

pytestmark = pytest.mark.service
Shared = tuple[Workshops, str]


class TestLife:
    async def test_checkout_is_on_the_branch_at_the_commit_and_clean(
        self, workshops: Workshops, source: RepoSource
    ) -> None:
        name = await ready(workshops, spec_for(source))
        found = await sh(workshops, name, "git rev-parse HEAD; git branch --show-current; git status --porcelain; ls")
        assert found.stdout.decode().split("\n") == [source.commit, "trunk", "README.md", "sub dir", ""]

    async def test_empty_repository_gives_an_unborn_branch_that_takes_commits(
        self, workshops: Workshops, source: RepoSource
    ) -> None:
        name = await ready(workshops, spec_for(replace(source, commit="", branch="main")))
        done = await sh(workshops, name, "echo a > a && git add a && git commit -qm a && git branch --show-current")
        assert (done.exit_code, done.stdout, done.stderr) == (0, b"main\n", b"")

    async def test_creating_again_finds_the_one_that_exists(self, workshops: Workshops, source: RepoSource) -> None:
        name = await ready(workshops, spec_for(source))
        await sh(workshops, name, "echo mine > kept")
        before = await workshops.status(name)
        await workshops.create(spec_for(source))
        assert await workshops.wait_running(name) == before
        assert await workshops.get_file(name, "kept", 100) == b"mine\n"

    async def test_concurrent_creation_makes_one(self, workshops: Workshops, source: RepoSource) -> None:
        made = await asyncio.gather(*(workshops.create(spec_for(source)) for _ in range(4)))
        assert len({status.created_at for status in made}) == 1
        assert len(await workshops.list()) == 1
        await workshops.wait_running("pm-test")

    async def test_list_by_campaign_and_ticket(self, workshops: Workshops, source: RepoSource) -> None:
        await workshops.create(spec_for(source, "a", campaign="one", ticket="t1"))
        await workshops.create(spec_for(source, "b", campaign="one", ticket="t2"))

        async def names(**query: str) -> list[str]:
            return [status.name for status in await workshops.list(**query)]

        assert await names() == ["a", "b"]
        assert await names(campaign="one") == ["a", "b"]
        assert await names(ticket="t2") == ["b"]
        assert await names(campaign="other") == []

    async def test_delete_ends_commands_and_forgets(self, workshops: Workshops, source: RepoSource) -> None:
        name = await ready(workshops, spec_for(source))
        await workshops.delete(name)
        await workshops.delete(name)
        assert await workshops.status(name) is None
        assert list(await workshops.list()) == []
        name = await ready(workshops, spec_for(source))
        assert (await sh(workshops, name, "git status --porcelain")).stdout == b""

    async def test_what_does_not_exist(self, workshops: Workshops) -> None:
        assert await workshops.status("none") is None
        await workshops.suspend("none")
        await workshops.delete("none")
        with pytest.raises(NotFound):
            await workshops.wait_running("none")
        with pytest.raises(NotFound):
            await run(workshops, "none", "true")
        with pytest.raises(NotFound):
            await workshops.put_file("none", "a", b"")
        with pytest.raises(NotFound):
            await workshops.get_file("none", "a", 1)

    @pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "..", "a.b", "a" * 64, "a\n", "ü"])
    async def test_names_are_dns_labels(self, workshops: Workshops, source: RepoSource, name: str) -> None:
        with pytest.raises(InvalidInput):
            await workshops.create(spec_for(source, name))

    async def test_suspended_stands_still_and_goes_on(self, workshops: Workshops, source: RepoSource) -> None:
        name = await ready(workshops, spec_for(source))
        script = "i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i > n.new; mv n.new n; done; echo done"
        long = asyncio.create_task(sh(workshops, name, script, timeout=30))

        async def counted() -> int:
            return int(await workshops.get_file(name, "n", 100))

        async def started() -> bool:
            return (await sh(workshops, name, "test -e n")).exit_code == 0

        await until(started)
        await workshops.suspend(name)
        await workshops.suspend(name)
        status = await workshops.status(name)
        assert status is not None
        assert status.phase is Phase.SUSPENDED
        before = await counted()
        await asyncio.sleep(0.1)
        assert await counted() == before
        with pytest.raises(WorkshopFailed):
            await run(workshops, name, "true")
        await workshops.resume(name)
        await until(lambda: _greater(counted, before))
        await sh(workshops, name, "touch stop")
        assert (await long).stdout == b"done\n"

    async def test_time_limits_rest_while_suspended(self, workshops: Workshops, source: RepoSource) -> None:
        name = await ready(workshops, spec_for(source))
        long = asyncio.create_task(sh(workshops, name, "touch up; while [ ! -e stop ]; do sleep 0.02; done", timeout=3))
        await until(lambda: _exists(workshops, name, "up"))
        await workshops.suspend(name)
        await asyncio.sleep(3.2)
        assert (await workshops.wait_running(name)).phase is Phase.RUNNING
        await sh(workshops, name, "touch stop")
        assert (await long).exit_code == 0


async def _greater(counted: Callable[[], Awaitable[int]], before: int) -> bool:
    return await counted() > before


async def _exists(workshops: Workshops, name: str, path: str) -> bool:
    return (await sh(workshops, name, f"test -e {path}")).exit_code == 0


class TestExec:
    async def test_streams_are_apart_and_the_exit_code_is_told(self, shared: Shared) -> None:
        done = await sh(*shared, "echo out; echo err >&2; exit 7")
        assert (done.exit_code, done.stdout, done.stderr, done.reason) == (7, b"out\n", b"err\n", "")

    async def test_binary_passes_both_ways(self, shared: Shared) -> None:
        data = bytes(range(256)) * 4000
        assert (await run(*shared, "cat", stdin=data)).stdout == data

    async def test_argv_is_never_read_by_a_shell(self, shared: Shared) -> None:
        hostile = "$(touch /tmp/pwned) `id` ; rm -rf / \n'\""
        done = await run(*shared, "printf", "%s", hostile)
        assert done.stdout.decode() == hostile
        assert (await sh(*shared, "test -e /tmp/pwned")).exit_code == 1

    async def test_environment_and_directory(self, shared: Shared) -> None:
        done = await sh(*shared, 'echo "$EXTRA $PWD"', env={"EXTRA": "a b"}, cwd="sub dir")
        status = await shared[0].status(shared[1])
        assert status is not None
        assert done.stdout.decode() == f"a b {status.workdir}/sub dir\n"
        assert (await run(*shared, "pwd", cwd="/usr")).stdout == b"/usr\n"

    async def test_what_cannot_be_started_ends_as_in_a_shell(self, shared: Shared) -> None:
        missing = await run(*shared, "no-such-program")
        assert missing.exit_code == 127
        assert b"no-such-program" in missing.stderr
        assert (await run(*shared, "/etc")).exit_code == 126

    async def test_unread_input_is_no_failure(self, shared: Shared) -> None:
        assert (await run(*shared, "true", stdin=b"x" * 1_000_000)).exit_code == 0

    async def test_the_same_id_runs_once(self, shared: Shared) -> None:
        once = request("sh", "-c", "echo x >> /tmp/counted; sleep 0.2; wc -l < /tmp/counted")
        results = await asyncio.gather(*(shared[0].exec(shared[1], once) for _ in range(5)))
        results.append(await shared[0].exec(shared[1], replace(once, argv=("false",))))
        assert {result.stdout for result in results} == {b"1\n"}
        assert {result.exit_code for result in results} == {0}

    async def test_output_comes_as_it_is_written_and_is_replayed(self, shared: Shared) -> None:
        workshops, name = shared
        step = request("sh", "-c", "echo first; until [ -e /tmp/go ]; do sleep 0.02; done; echo second >&2; rm /tmp/go")
        events: list[ExecEvent] = []
        async for event in workshops.stream(name, step):
            if not events:
                assert event == ExecEvent("stdout", b"first\n")
                await run(workshops, name, "touch", "/tmp/go")
            events.append(event)
        assert [event.kind for event in events] == ["stdout", "stderr", "exit"]
        replayed = [event async for event in workshops.stream(name, step)]
        assert replayed == events
        assert events[-1].result == await workshops.exec(name, step)

    async def test_output_keeps_head_and_tail(self, shared: Shared) -> None:
        script = "printf head; head -c 3000000 /dev/zero | tr '\\0' x; printf tail; printf small >&2"
        done = await sh(*shared, script, output_limit=1000)
        assert done.truncated
        assert done.stdout.startswith(b"head")
        assert done.stdout.endswith(b"tail")
        assert b"bytes dropped" in done.stdout
        assert len(done.stdout) < 1100
        assert done.stderr == b"small"
        exact = await sh(*shared, "head -c 1000 /dev/zero", output_limit=1000)
        assert (len(exact.stdout), exact.truncated) == (1000, False)

    async def test_a_time_limit_kills_the_whole_tree(self, shared: Shared) -> None:
        script = "(setsid sh -c 'sleep 77.25' &) ; sleep 77.25 & trap '' TERM INT; echo up; sleep 77.25; sleep 77.25"
        done = await sh(*shared, script, timeout=0.5)
        assert (done.exit_code, done.timed_out, done.stdout) == (None, True, b"up\n")
        assert "0.5 s" in done.reason
        assert await _running(shared, "77.25") == 0

    async def test_leftovers_die_with_their_command(self, shared: Shared) -> None:
        script = "(setsid nohup sh -c 'sleep 78.25' >/dev/null 2>&1 &); sleep 78.25 & setsid sleep 78.25 & echo ok"
        done = await sh(*shared, script)
        assert (done.exit_code, done.stdout) == (0, b"ok\n")
        assert await _running(shared, "78.25") == 0

    async def test_others_commands_do_not_die_with_one(self, shared: Shared) -> None:
        workshops, name = shared
        other = asyncio.create_task(sh(workshops, name, "touch /tmp/up; sleep 0.3; echo alive"))
        await until(lambda: _exists(workshops, name, "/tmp/up"))
        await sh(workshops, name, "sleep 60 & true")
        assert (await other).stdout == b"alive\n"

    async def test_death_by_a_signal_is_no_exit_code(self, shared: Shared) -> None:
        done = await sh(*shared, "kill -SEGV $$")
        assert (done.exit_code, done.timed_out) == (None, False)
        assert "signal 11" in done.reason

    @pytest.mark.parametrize(
        "changes", [{"argv": ()}, {"argv": ("a\0b",)}, {"env": {"A=B": "c"}}, {"id": ""}, {"id": "x" * 501}]
    )
    async def test_what_cannot_be_a_command_is_refused(self, shared: Shared, changes: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            await shared[0].exec(shared[1], replace(request("true"), **changes))


async def _running(shared: Shared, mark: str) -> int:
    """Commands that run inside with some mark as an argument."""
    listing = await sh(*shared, "cat /proc/[0-9]*/cmdline 2>/dev/null")
    return listing.stdout.split(b"\0").count(mark.encode())


class TestFiles:
    @pytest.mark.parametrize("data", [b"", b"text\n", bytes(range(256)) * 8000])
    async def test_round_trip(self, shared: Shared, data: bytes) -> None:
        workshops, name = shared
        status = await workshops.status(name)
        assert status is not None
        await workshops.put_file(name, "a dir/ü/file.bin", data)
        assert await workshops.get_file(name, f"{status.home}/a dir/ü/file.bin", len(data)) == data

    async def test_relative_paths_are_of_the_checkout(self, shared: Shared) -> None:
        assert await shared[0].get_file(shared[1], "sub dir/ü.txt", 100) == b"x\n"

    async def test_put_replaces_a_link_instead_of_following_it(self, shared: Shared) -> None:
        workshops, name = shared
        await sh(workshops, name, "echo safe > ~/target; ln -sf target ~/link; mkdir -p ~/real; ln -sfn real ~/linked")
        await workshops.put_file(name, "link", b"new")
        done = await sh(workshops, name, "cat ~/target; test -L ~/link || cat ~/link")
        assert done.stdout == b"safe\nnew"
        with pytest.raises(InvalidInput):
            await workshops.put_file(name, "linked/file", b"new")

    @pytest.mark.parametrize("path", ["../x", "/etc/x", "", ".", "a/../../x", "a\0b"])
    async def test_put_stays_in_the_home_directory(self, shared: Shared, path: str) -> None:
        with pytest.raises(InvalidInput):
            await shared[0].put_file(shared[1], path, b"x")

    async def test_get_refuses_all_but_regular_files_of_the_given_size(self, shared: Shared) -> None:
        workshops, name = shared
        await sh(
            workshops, name, "cd /tmp; ln -sf /etc/passwd l; ln -sfn /etc d; rm -f f; mkfifo f; truncate -s 2000 big"
        )
        for path in ("/tmp/l", "/tmp/d/passwd", "/tmp/f", "/tmp", "/dev/zero", "/tmp/big", "/tmp/../etc/passwd"):
            with pytest.raises(InvalidInput):
                await workshops.get_file(name, path, 1999)
        for path in ("/tmp/missing", "missing/missing"):
            with pytest.raises(NotFound):
                await workshops.get_file(name, path, 1999)
        assert len(await workshops.get_file(name, "/tmp/big", 2000)) == 2000
