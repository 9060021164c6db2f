"""Git on the host: nothing of the machine's or a repository's own configuration runs, and limits hold."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.gitio import (
    EMPTY_TREE,
    Git,
    GitFailed,
    GitOutputTooLarge,
    GitTimedOut,
    InvalidRef,
    RemoteNotFound,
    branch_ref,
    check_commit,
    check_ref,
    check_remote_url,
)
from tests.support.repositories import bare, checkout


async def test_configuration_of_the_machine_and_user_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / ".gitconfig"
    config.write_text("[alias]\n\tevil = !touch ran\n[user]\n\tname = Machine\n[core]\n\tpager = touch ran\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name, value in {
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "user.name",
        "GIT_CONFIG_VALUE_0": "Environment",
        "GIT_DIR": "/nowhere",
        "GIT_EXEC_PATH": "/nowhere",
        "GIT_TRACE": "1",
        "GIT_SSH_COMMAND": "touch ran",
        "GIT_EXTERNAL_DIFF": "touch ran",
        "GIT_ASKPASS": "touch",
        "LD_PRELOAD": "",
    }.items():
        monkeypatch.setenv(name, value)
    git = Git(bare(tmp_path / "x.git"))
    listed = (await git.run("config", "--list", "--show-origin")).text
    assert "Machine" not in listed
    assert "Environment" not in listed
    with pytest.raises(GitFailed):
        await git.run("evil")
    made = await git.run("commit-tree", "-m", "x", EMPTY_TREE)
    assert "Atelier <atelier@atelier.invalid>" in (await git.run("cat-file", "commit", made.text)).text
    assert made.stderr == ""


async def test_hooks_filters_and_watchers_of_a_repository_do_not_run(tmp_path: Path) -> None:
    work = checkout(tmp_path / "work")
    work.commit("one", {"a": "1\n", ".gitattributes": "* filter=evil diff=evil\n"})
    flag = tmp_path / "ran"
    evil = work.write(".git/evil", f"#!/bin/sh\ntouch {flag}\ncat\n")
    evil.chmod(0o755)
    for key in ("core.fsmonitor", "core.hooksPath", "diff.external", "diff.evil.textconv", "core.sshCommand"):
        work.git("config", key, str(evil if key != "core.hooksPath" else evil.parent / "hooks"))
    hook = work.write(".git/hooks/reference-transaction", evil.read_bytes())
    hook.chmod(0o755)
    git = Git(work.path / ".git")
    await git.run("update-ref", "refs/heads/x", work.head)
    await git.run("diff", "--no-ext-diff", "--no-textconv", EMPTY_TREE, work.head)
    assert not flag.exists()


async def test_a_command_that_takes_too_long_is_stopped_with_its_children(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    git = Git(bare(tmp_path / "x.git"), timeout=0.5)
    with pytest.raises(GitTimedOut) as caught:
        await git.run("-c", f"alias.wait=!mkfifo {fifo}; cat {fifo}", "wait")
    assert (caught.value.code, caught.value.transient) == ("GIT_TIMEOUT", True)


async def test_a_cancelled_command_leaves_no_process(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    git = Git(bare(tmp_path / "x.git"))
    task = asyncio.create_task(git.run("-c", f"alias.wait=!mkfifo {fifo}; cat {fifo}", "wait"))
    async with asyncio.timeout(20):
        while not fifo.exists():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(fifo).encode() in _read(path)]
    assert left == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_output_above_the_limit_is_an_error_and_never_cut_off(tmp_path: Path) -> None:
    git = Git(bare(tmp_path / "x.git"), output_limit=1000)
    blob = (await git.run("hash-object", "-w", "--stdin", stdin=b"x" * 5000)).text
    with pytest.raises(GitOutputTooLarge):
        await git.run("cat-file", "blob", blob)


async def test_large_input_and_output_pass_at_the_same_time(tmp_path: Path) -> None:
    git = Git(bare(tmp_path / "x.git"))
    out = await git.run("stripspace", stdin=b"line\n" * 1_000_000)
    assert len(out.stdout) == 5_000_000


async def test_input_that_is_not_read_is_no_error_of_its_own(tmp_path: Path) -> None:
    assert (await Git(bare(tmp_path / "x.git")).run("version", stdin=b"x" * 5_000_000)).code == 0


async def test_failures_say_what_git_said(tmp_path: Path) -> None:
    git = Git(bare(tmp_path / "x.git"))
    with pytest.raises(GitFailed, match="valid object name"):
        await git.run("cat-file", "-t", "nothing")
    with pytest.raises(RemoteNotFound):
        await git.run("ls-remote", str(tmp_path / "nowhere"))
    with pytest.raises(InvalidInput):
        await git.run("cat-file", "-t", "a\0b")


@pytest.mark.parametrize("url", ["ext::sh -c id", "ext::id"])
async def test_remote_helpers_that_run_commands_are_off(tmp_path: Path, url: str) -> None:
    with pytest.raises(GitFailed, match="not allowed"):
        await Git(bare(tmp_path / "x.git")).run("ls-remote", url)


@pytest.mark.parametrize("branch", ["main", "-x", "--force", "a/b", "é", "feature#1", "atelier/1.2-x"])
def test_branches_become_full_refs(branch: str) -> None:
    assert branch_ref(branch) == f"refs/heads/{branch}"


@pytest.mark.parametrize(
    "branch", ["", "HEAD", "a b", "a..b", "a~", "a^", "a:b", "a?", "a*", "a[", "a\\b", "/a", "a/", "a//b", ".a", "a.",
               "a.lock", "a/.b", "a@{b", "a\n", "a\0", "x" * 600],
)  # fmt: skip
def test_branches_that_git_forbids_are_refused(branch: str) -> None:
    with pytest.raises(InvalidRef):
        branch_ref(branch)


@pytest.mark.parametrize("ref", ["main", "refs", "refs/", "refs/x", "HEAD", "refs/heads/../x"])
def test_only_full_refs_are_refs(ref: str) -> None:
    with pytest.raises(InvalidRef):
        check_ref(ref)


@pytest.mark.parametrize("commit", ["", "HEAD", "a" * 39, "A" * 40, "g" * 40, "a" * 40 + "\n", "--output=x"])
def test_only_full_names_are_commits(commit: str) -> None:
    with pytest.raises(InvalidRef):
        check_commit(commit)


@pytest.mark.parametrize(
    "url", ["https://example.org/a/b.git", "ssh://git@example.org/a", "git@example.org:a/b.git", "/srv/git/a.git",
            "file:///srv/git/a.git", "http://127.0.0.1:3000/a"],
)  # fmt: skip
def test_usual_addresses_pass(url: str) -> None:
    assert check_remote_url(url) == url


@pytest.mark.parametrize(
    "url", ["", "-x", "--upload-pack=id", "ext::id", "fd::1", "https://u:p@example.org/a", "https://token@example.org/a",
            "relative/path", "C:\\x", "https://example.org/a\nb", "ftp://example.org/a", "a@-oProxyCommand=id:x"],
)  # fmt: skip
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        check_remote_url(url)
