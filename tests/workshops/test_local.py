"""Local workshops: who owns what, what survives whose death, and what is never seen inside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from atelier_dagster.factory.errors import InvalidInput, WorkshopFailed
from atelier_dagster.ports import ExecRequest, ModelUpstream, Phase, RepoSource
from atelier_dagster.sandbox import bubblewrap
from atelier_dagster.sandbox.places import Places
from atelier_dagster.workshops import BACKENDS, LocalWorkshops, create_backend
from tests.support.workshops import ready, request, run, sh, spec_for, until

pytestmark = pytest.mark.service
KEY = "sk-very-secret-0123456789"


@pytest.fixture
def local(tmp_path: Path) -> Generator[LocalWorkshops]:
    """An empty backend with a model key to keep."""
    backend = LocalWorkshops(tmp_path / "w", upstream=ModelUpstream("http://127.0.0.1:9/v1", SecretStr(KEY), "m"))
    yield backend
    asyncio.run(_delete_all(backend))


async def _delete_all(backend: LocalWorkshops) -> None:
    for status in await backend.list():
        await backend.delete(status.name)


def places(tmp_path: Path, name: str = "pm-test") -> Places:
    return Places(tmp_path / "w" / name)


def host_processes() -> str:
    """Command lines of everything that runs on the host."""
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


async def exists(backend: LocalWorkshops, name: str, path: str) -> bool:
    return (await sh(backend, name, f"test -e {path}")).exit_code == 0


# ------------------------------------------------------------------------------------------------- who dies


CALLER = """
import asyncio, sys
from pathlib import Path
from atelier_dagster.ports import ExecRequest
from atelier_dagster.workshops import LocalWorkshops
request = ExecRequest(sys.argv[2], ("sh", "-c", sys.argv[3]))
result = asyncio.run(LocalWorkshops(Path(sys.argv[1])).exec("pm-test", request))
sys.stdout.buffer.write(result.stdout)
"""


def caller(tmp_path: Path, exec_id: str, script: str) -> subprocess.Popen[bytes]:
    """Another process that runs a command in the workshop."""
    argv = [sys.executable, "-c", CALLER, str(tmp_path / "w"), exec_id, script]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])


async def test_a_command_outlives_its_caller_and_is_found_again(
    local: LocalWorkshops, source: RepoSource, tmp_path: Path
) -> None:
    name = await ready(local, spec_for(source))
    script = "echo run >> log; until [ -e go ]; do sleep 0.02; done; cat log"
    with caller(tmp_path, "long", script) as process:
        await until(lambda: exists(local, name, "log"))
        process.kill()
        await asyncio.to_thread(process.wait)
    found = asyncio.create_task(local.exec(name, ExecRequest("long", ("false",))))
    await sh(local, name, "touch go")
    assert (await found).stdout == b"run\n"


async def test_two_processes_with_one_id_run_it_once(local: LocalWorkshops, source: RepoSource, tmp_path: Path) -> None:
    await ready(local, spec_for(source))
    callers = [caller(tmp_path, "same", "echo run >> log; sleep 0.5; cat log") for _ in range(2)]
    outputs = [await asyncio.to_thread(process.communicate) for process in callers]
    assert [output for output, _ in outputs] == [b"run\n", b"run\n"]


async def test_the_supervisors_death_loses_the_command_but_nothing_else(
    local: LocalWorkshops, source: RepoSource, tmp_path: Path
) -> None:
    name = await ready(local, spec_for(source))
    kept = await local.exec(name, ExecRequest("early", ("echo", "kept")))
    lost = ExecRequest("lost", ("sh", "-c", "echo run >> log; exec sleep 300"))
    waiting = asyncio.create_task(local.exec(name, lost))
    await until(lambda: exists(local, name, "log"))
    pid = places(tmp_path).supervisor_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    result = await waiting
    assert (result.exit_code, result.timed_out, result.truncated) == (None, False, True)
    assert "supervisor" in result.reason
    assert await local.exec(name, lost) == result
    assert await local.exec(name, ExecRequest("early", ("false",))) == kept
    assert await local.get_file(name, "log", 100) == b"run\n"
    listing = await sh(local, name, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
    assert b"sleep 300" not in listing.stdout


async def test_a_workshop_without_supervisor_is_asleep_and_wakes(
    local: LocalWorkshops, source: RepoSource, tmp_path: Path
) -> None:
    name = await ready(local, spec_for(source, model_access=True))
    pid = places(tmp_path).supervisor_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: _dead(tmp_path))
    status = await local.status(name)
    assert status is not None
    assert status.phase is Phase.SUSPENDED
    await local.suspend(name)
    woken = await LocalWorkshops(tmp_path / "w").wait_running(name)
    assert (woken.phase, woken.model_url) == (Phase.RUNNING, "http://127.0.0.1:3129/v1")


async def _dead(tmp_path: Path) -> bool:
    return not places(tmp_path).supervisor_alive()


async def test_the_sandboxs_death_ends_its_commands_and_is_mended(
    local: LocalWorkshops, source: RepoSource, tmp_path: Path
) -> None:
    name = await ready(local, spec_for(source))
    waiting = asyncio.create_task(sh(local, name, "touch up; sleep 300"))
    await until(lambda: exists(local, name, "up"))
    pid = places(tmp_path).supervisor_pid()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(children) == 1
    os.kill(int(children[0]), signal.SIGKILL)
    result = await waiting
    assert result.exit_code is None
    assert "sandbox ended" in result.reason
    assert (await run(local, name, "cat", "README.md")).stdout == b"hello\n"


# -------------------------------------------------------------------------------------------- creation, removal


async def test_what_cannot_be_checked_out_fails_with_the_reason_and_can_be_created_again(
    local: LocalWorkshops, source: RepoSource
) -> None:
    await local.create(spec_for(replace(source, commit="0" * 40)))
    with pytest.raises(WorkshopFailed, match="0" * 40):
        await local.wait_running("pm-test")
    status = await local.status("pm-test")
    assert status is not None
    assert status.phase is Phase.FAILED
    with pytest.raises(WorkshopFailed):
        await run(local, "pm-test", "true")
    await ready(local, spec_for(source))


@pytest.mark.parametrize("commit", ["main", "-x", "0" * 39, "$(id)"])
async def test_commits_are_full_ids(local: LocalWorkshops, source: RepoSource, commit: str) -> None:
    with pytest.raises(InvalidInput):
        await local.create(spec_for(replace(source, commit=commit)))


@pytest.mark.parametrize("host", ["*", "*.com", "http://a.example", "a.example/", "a.example:80", "*.*.example", ""])
async def test_egress_entries_are_hosts(local: LocalWorkshops, source: RepoSource, host: str) -> None:
    with pytest.raises(InvalidInput):
        await local.create(spec_for(source, egress=(host,)))


async def test_only_the_commits_history_is_handed_over(local: LocalWorkshops, source: RepoSource) -> None:
    name = await ready(local, spec_for(source))
    found = await sh(local, name, "git cat-file --batch-all-objects --batch-check; git for-each-ref; git remote -v")
    assert found.stdout.count(b" commit ") == 1
    assert b"other" not in found.stdout


async def test_half_created_and_half_deleted_ones_are_removed(
    local: LocalWorkshops, source: RepoSource, tmp_path: Path
) -> None:
    half = tmp_path / "w" / "half"
    (half / "data" / "workdir").mkdir(parents=True)
    trash = tmp_path / "w" / ".trash" / "half" / "x" / "half"
    trash.mkdir(parents=True)
    assert await local.status("half") is None
    await local.delete("half")
    assert not half.exists()
    assert not trash.exists()
    half.mkdir()
    await ready(local, spec_for(source, "half"))


async def test_what_a_killed_process_left_of_others_goes_with_the_next_removal(
    local: LocalWorkshops, tmp_path: Path
) -> None:
    left = tmp_path / "w" / ".trash" / "other" / "x"
    left.mkdir(parents=True)
    await local.delete("another")
    assert not left.parent.exists()


async def test_deletion_copes_with_whatever_was_left_inside(
    local: LocalWorkshops, source: RepoSource, tmp_path: Path
) -> None:
    name = await ready(local, spec_for(source))
    deep = "import os\nfor _ in range(3000):\n  os.mkdir('d'); os.chdir('d')\nos.close(os.open('f', os.O_CREAT))"
    assert (await run(local, name, "python3", "-c", deep)).exit_code == 0
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    await sh(local, name, f"mkdir m; echo x > m/x; chmod 000 m/x m; ln -s {outside} out; mkfifo p; chmod 000 ~")
    await local.delete(name)
    assert not places(tmp_path).root.exists()
    assert (outside / "kept").exists()


async def test_a_deep_root_is_no_problem_for_its_sockets(tmp_path: Path, source: RepoSource) -> None:
    backend = LocalWorkshops(tmp_path / ("d" * 100) / ("e" * 100))
    await ready(backend, spec_for(source))
    await backend.delete("pm-test")


async def test_nothing_runs_after_deletion(local: LocalWorkshops, source: RepoSource, tmp_path: Path) -> None:
    name = await ready(local, spec_for(source))
    waiting = asyncio.create_task(sh(local, name, "touch up; sleep 87654"))
    await until(lambda: exists(local, name, "up"))
    await local.delete(name)
    await asyncio.wait([waiting], timeout=20)
    assert waiting.done()
    assert waiting.exception() is not None
    listing = host_processes()
    assert "sleep 87654" not in listing
    assert str(tmp_path) not in listing


async def test_a_supervisor_ends_when_its_directory_is_removed_by_hand(
    local: LocalWorkshops, source: RepoSource, tmp_path: Path
) -> None:
    await ready(local, spec_for(source))
    pid = places(tmp_path).supervisor_pid()
    shutil.rmtree(places(tmp_path).root)

    async def ended() -> bool:
        return not Path(f"/proc/{pid}").exists()

    await until(ended)


# --------------------------------------------------------------------------------------------------- secrets


async def test_the_model_key_is_nowhere_but_in_the_supervisors_memory(
    local: LocalWorkshops, source: RepoSource, tmp_path: Path
) -> None:
    name = await ready(local, spec_for(source, model_access=True))
    search = f"env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; grep -rs {KEY[:9]} /home /tmp /run /etc /workspace"
    inside = await sh(local, name, search)
    assert KEY.encode() not in inside.stdout
    pid = places(tmp_path).supervisor_pid()
    for file in ("cmdline", "environ"):
        assert KEY.encode() not in Path(f"/proc/{pid}/{file}").read_bytes()
    for path in places(tmp_path).root.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes()
    assert KEY not in repr(local.__dict__)


async def test_the_environment_is_a_fixed_list(
    local: LocalWorkshops, source: RepoSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SECRET", "leaked")
    name = await ready(local, spec_for(source))
    names = {line.split("=")[0] for line in (await run(local, name, "env")).stdout.decode().splitlines()}
    proxy = {"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}
    tools = {"NODE_USE_ENV_PROXY", "MAVEN_OPTS", "GRADLE_OPTS"}
    user = {"HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "TZ", "TERM", "PATH"}
    assert names == proxy | tools | user


async def test_the_hosts_certificates_are_used_when_given(tmp_path: Path, source: RepoSource) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("certificates")
    bundle.chmod(0o644)
    backend = LocalWorkshops(tmp_path / "w", ca_bundle=bundle)
    name = await ready(backend, spec_for(source))
    found = await sh(backend, name, 'cat "$SSL_CERT_FILE" "$NODE_EXTRA_CA_CERTS" "$PIP_CERT"')
    await backend.delete(name)
    assert found.stdout == b"certificates" * 3


async def test_mounts_are_read_only(tmp_path: Path, source: RepoSource) -> None:
    tool = tmp_path / "tool"
    tool.mkdir(mode=0o755)
    (tool / "file").write_text("tool")
    (tool / "file").chmod(0o644)
    backend = LocalWorkshops(tmp_path / "w", mounts=[(tool, "/opt/tool")])
    name = await ready(backend, spec_for(source))
    found = await sh(backend, name, "cat /opt/tool/file; echo x > /opt/tool/file; echo x > /opt/tool/new; ls /opt")
    await backend.delete(name)
    assert found.stdout == b"tooltool\n"
    assert found.stderr.count(b"Read-only file system") == 2


# ------------------------------------------------------------------------------------------- without a sandbox


async def test_without_bubblewrap_it_refuses_and_preflight_says_so(
    local: LocalWorkshops, source: RepoSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "candidates", lambda: ["/bin/false"])
    with pytest.raises(WorkshopFailed) as refused:
        await local.create(spec_for(source))
    assert refused.value.code == "SANDBOX_UNAVAILABLE"
    assert "/bin/false" in refused.value.message
    assert refused.value.fix
    assert await local.status("pm-test") is None
    checks = {check.name: check for check in await local.preflight()}
    assert not checks["workshops: sandbox"].ok
    assert checks["workshops: sandbox"].fix


async def test_preflight_says_how_things_are_held(local: LocalWorkshops) -> None:
    checks = await local.preflight()
    assert [check.ok for check in checks] == [True, True, True]
    assert "memory" in checks[2].detail


async def test_unsafe_mode_runs_plain_processes_and_says_so(
    tmp_path: Path, source: RepoSource, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "candidates", lambda: ["/bin/false"])
    backend = LocalWorkshops(tmp_path / "w", unsafe=True)
    assert "WITHOUT a sandbox" in caplog.text
    assert "UNSAFE" in (await backend.preflight())[-1].detail
    name = await ready(backend, spec_for(source, model_access=True))
    status = await backend.status(name)
    assert status is not None
    found = await sh(backend, name, "cat README.md; git status --porcelain; pwd; echo $HOME")
    assert found.stdout.decode() == f"hello\n{status.workdir}\n{status.home}\n"
    waiting = asyncio.create_task(sh(backend, name, "touch up; setsid sleep 86543 & sleep 86543"))
    await until(lambda: exists(backend, name, "up"))
    await backend.suspend(name)
    await backend.resume(name)
    await backend.delete(name)
    with contextlib.suppress(Exception):
        await waiting
    assert "sleep 86543" not in host_processes()


# ------------------------------------------------------------------------------------------------ other things


async def test_workshops_have_different_users_when_started_as_root(
    local: LocalWorkshops, source: RepoSource, tmp_path: Path
) -> None:
    names = [await ready(local, spec_for(source, name)) for name in ("a", "b")]
    owners = {places(tmp_path, name).workdir_dir.stat().st_uid for name in names}
    expected = 2 if os.geteuid() == 0 else 1
    assert len(owners) == expected
    assert 0 not in owners
    assert all(places(tmp_path, name).root.stat().st_mode & 0o077 == 0 for name in names)


async def test_a_running_command_can_be_cancelled(local: LocalWorkshops, source: RepoSource) -> None:
    name = await ready(local, spec_for(source))
    step = request("sh", "-c", "touch up; sleep 300")
    waiting = asyncio.create_task(local.exec(name, step))
    await until(lambda: exists(local, name, "up"))
    await local.cancel(name, step.id, "enough")
    assert ((await waiting).exit_code, (await waiting).reason) == (None, "enough")
    await local.cancel(name, "unknown")


async def test_metadata_holds_what_a_new_supervisor_needs(
    local: LocalWorkshops, source: RepoSource, tmp_path: Path
) -> None:
    await ready(local, spec_for(source, egress=("a.example",)))
    values = json.loads(places(tmp_path).metadata.read_text())
    assert values["egress"] == ["a.example"]
    assert values["source"]["commit"] == source.commit


def test_backends_are_made_by_name(tmp_path: Path) -> None:
    assert isinstance(create_backend("local", tmp_path), LocalWorkshops)
    assert "local" in BACKENDS
    with pytest.raises(InvalidInput):
        create_backend("nowhere")
