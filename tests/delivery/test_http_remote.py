"""Fetching and pushing over HTTP with a credential that is in no URL, argument, log or error."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from atelier_dagster.delivery import HostRepository
from atelier_dagster.gitio import GitAuthFailed, GitUnavailable, PushRejected, RemoteNotFound
from atelier_dagster.ports import GitRemote
from tests.support.githttp import GitServer, git_server
from tests.support.repositories import Checkout, bare, checkout, git

pytestmark = pytest.mark.service


@pytest.fixture
def served(tmp_path: Path) -> Path:
    path = bare(tmp_path / "srv" / "demo" / "shop.git")
    git(path, "config", "http.receivepack", "true")
    return path


@pytest.fixture
def server(served: Path) -> Generator[GitServer]:
    with git_server(served.parent.parent) as server:
        yield server


@pytest.fixture
def remote(server: GitServer) -> GitRemote:
    return GitRemote(f"{server.url}/demo/shop.git", server.username, SecretStr(server.password))


@pytest.fixture
def work(tmp_path: Path) -> Checkout:
    work = checkout(tmp_path / "work")
    work.commit("one", {"a": "1"})
    return work


@pytest.fixture
async def host(tmp_path: Path, work: Checkout) -> HostRepository:
    host = HostRepository(tmp_path / "host.git", timeout=60)
    await host.fetch(GitRemote(str(work.path)), ["main"])
    return host


async def test_a_push_arrives_once_and_a_fetch_brings_it_back(
    host: HostRepository, work: Checkout, remote: GitRemote, served: Path, server: GitServer
) -> None:
    assert await host.push(remote, "main", work.head, None) is True
    assert await host.push(remote, "main", work.head) is False
    assert git(served, "rev-parse", "main") == work.head
    assert await host.fetch(remote, ["main", "absent"]) == {"main": work.head, "absent": None}
    before = len(server.paths)
    assert await host.fetch(remote, {"main": work.head}) == {"main": work.head}
    assert len(server.paths) == before


async def test_the_credential_is_nowhere_to_be_seen(
    host: HostRepository,
    work: Checkout,
    remote: GitRemote,
    server: GitServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    seen = tmp_path / "argv"
    wrapper = tmp_path / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{seen}\nPATH=${{PATH#*:}} exec git "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    await host.push(remote, "main", work.head, None)
    assert "push" in seen.read_text()
    for text in (seen.read_text(), caplog.text, repr(remote), repr(host), str(server.paths)):
        assert server.password not in text
    for path in host.path.rglob("*"):
        assert not path.is_file() or server.password.encode() not in path.read_bytes()


async def test_a_wrong_credential_is_an_error_of_its_own(
    host: HostRepository, work: Checkout, remote: GitRemote
) -> None:
    wrong = replace(remote, password=SecretStr("wr0ng-t0ken"))
    for bad in (wrong, replace(remote, password=None)):
        with pytest.raises(GitAuthFailed) as caught:
            await host.push(bad, "main", work.head)
        assert caught.value.code == "GIT_AUTH"
        assert "wr0ng" not in str(caught.value)


async def test_a_repository_that_is_not_there_is_said_to_be(host: HostRepository, remote: GitRemote) -> None:
    with pytest.raises(RemoteNotFound):
        await host.fetch(replace(remote, url=remote.url.replace("shop", "absent")), ["main"])


async def test_nobody_listening_is_transient(host: HostRepository, remote: GitRemote) -> None:
    with pytest.raises(GitUnavailable) as caught:
        await host.fetch(replace(remote, url="http://127.0.0.1:9/demo/shop.git"), ["main"])
    assert caught.value.transient


async def test_a_redirect_to_another_host_gets_no_credential(
    host: HostRepository, remote: GitRemote, server: GitServer, served: Path
) -> None:
    with git_server(served.parent.parent) as other:
        server.redirect_to = other.url
        with pytest.raises(GitAuthFailed):
            await host.fetch(remote, ["main"])
        assert other.paths
        assert other.authorizations == []


async def test_two_who_push_at_once_lose_nothing(
    host: HostRepository, work: Checkout, remote: GitRemote, served: Path, tmp_path: Path
) -> None:
    await host.push(remote, "main", work.head, None)
    base = work.head
    other = HostRepository(tmp_path / "other.git")
    work.branch("two", base)
    two = work.commit("two", {"two": "2"})
    work.branch("three", base)
    three = work.commit("three", {"three": "3"})
    await host.fetch(GitRemote(str(work.path)), ["two"])
    await other.fetch(GitRemote(str(work.path)), ["three"])
    assert await other.push(remote, "main", three, base)
    with pytest.raises(PushRejected):
        await host.push(remote, "main", two, base)
    with pytest.raises(PushRejected):
        await host.push(remote, "main", two)
    assert git(served, "rev-parse", "main") == three
