"""Bundles that come out of workshops: good ones come in whole, and nothing of a bad one stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from atelier_dagster.delivery import BundleLimits, BundleRejected, HostRepository
from atelier_dagster.factory.errors import AtelierError
from tests.support.repositories import Checkout, checkout, git

REF = "refs/heads/atelier/1"


@pytest.fixture
def work(tmp_path: Path) -> Checkout:
    work = checkout(tmp_path / "work")
    work.commit("base", {"a": "1\n"})
    return work


@pytest.fixture
def base(work: Checkout) -> str:
    return work.head


@pytest.fixture
async def host(tmp_path: Path, work: Checkout, base: str) -> HostRepository:
    host = HostRepository(tmp_path / "host.git")
    await host.import_bundle(work.bundle("refs/heads/main"), ref="refs/heads/main", expected_parent="")
    work.branch("atelier/1")
    return host


async def rejected(host: HostRepository, data: bytes, parent: str, match: str) -> None:
    """Importing fails with that reason, and leaves nothing behind."""
    before = git(host.path, "count-objects", "-v")
    with pytest.raises(BundleRejected, match=match):
        await host.import_bundle(data, ref=REF, expected_parent=parent)
    assert git(host.path, "count-objects", "-v") == before
    assert await host.ref(REF) is None
    assert not list(host.path.glob("incoming-*"))


async def test_a_good_bundle_comes_in_again_and_again(host: HostRepository, work: Checkout, base: str) -> None:
    head = work.commit("work", {"b": "2\n"})
    data = work.bundle(REF, f"^{base}")
    for _ in range(2):
        assert await host.import_bundle(data, ref=REF, expected_parent=base) == head
    assert await host.ref(REF) == head
    assert await host.commits(base, head) == (head,)
    git(host.path, "fsck", "--strict")


async def test_a_bundle_may_be_a_file_and_come_in_twice_at_once(
    host: HostRepository, work: Checkout, base: str, tmp_path: Path
) -> None:
    head = work.commit("work", {"b": "2\n"})
    path = tmp_path / "x.bundle"
    path.write_bytes(work.bundle(REF, f"^{base}"))
    taken = await asyncio.gather(*(host.import_bundle(path, ref=REF, expected_parent=base) for _ in range(3)))
    assert set(taken) == {head}


async def test_two_refs_are_one_too_many(host: HostRepository, work: Checkout, base: str) -> None:
    work.commit("work", {"b": "2\n"})
    work.git("branch", "second")
    await rejected(host, work.bundle(REF, "refs/heads/second", f"^{base}"), base, "2 refs instead of one")


async def test_another_ref_than_asked_for_is_refused(host: HostRepository, work: Checkout, base: str) -> None:
    work.git("checkout", "-q", "main")
    work.commit("work", {"b": "2\n"})
    await rejected(host, work.bundle("refs/heads/main", f"^{base}"), base, "not of")


async def test_an_unrelated_history_is_refused(host: HostRepository, work: Checkout, base: str) -> None:
    work.git("checkout", "-q", "--orphan", "alone")
    work.commit("alone", {"b": "2\n"})
    work.git("update-ref", REF, "HEAD")
    await rejected(host, work.bundle(REF), base, "does not contain")


async def test_a_rewritten_history_is_refused(host: HostRepository, work: Checkout, base: str) -> None:
    work.git("commit", "-q", "--amend", "-m", "rewritten")
    await rejected(host, work.bundle(REF), base, "does not contain")


async def test_a_bundle_that_needs_what_the_host_has_not_is_refused(
    host: HostRepository, work: Checkout, base: str
) -> None:
    unseen = work.commit("unseen", {"b": "1\n" * 100})
    work.commit("work", {"b": "1\n" * 100 + "2\n"})
    await rejected(host, work.bundle(REF, f"^{unseen}"), base, "git (index-pack|rev-list|cat-file) failed")


async def test_an_annotated_tag_is_no_commit(host: HostRepository, work: Checkout, base: str) -> None:
    work.commit("work", {"b": "2\n"})
    work.git("tag", "-a", "-m", "x", "v1")
    data = work.bundle("refs/tags/v1", f"^{base}").replace(b" refs/tags/v1\n", f" {REF}\n".encode())
    await rejected(host, data, base, "offers a tag")


async def test_too_large_is_refused_before_it_is_looked_at(
    host: HostRepository, work: Checkout, base: str, tmp_path: Path
) -> None:
    work.commit("work", {"b": "2\n" * 100})
    data = work.bundle(REF, f"^{base}")
    with pytest.raises(BundleRejected, match="more than 50"):
        await host.import_bundle(data, ref=REF, expected_parent=base, limit=50)
    path = tmp_path / "x.bundle"
    path.write_bytes(data)
    with pytest.raises(AtelierError, match="larger than 50"):
        await host.import_bundle(path, ref=REF, expected_parent=base, limit=50)


@pytest.mark.parametrize("limits", [BundleLimits(file=1_000_000), BundleLimits(unpacked=1_000_000)])
async def test_a_small_bundle_that_unpacks_to_much_is_refused(
    host: HostRepository, work: Checkout, base: str, limits: BundleLimits
) -> None:
    work.commit("bomb", {"zeros": b"\0" * 5_000_000})
    data = work.bundle(REF, f"^{base}")
    assert len(data) < 100_000
    with pytest.raises(BundleRejected, match="more than 1000000"):
        await HostRepository(host.path, bundle_limits=limits).import_bundle(data, ref=REF, expected_parent=base)


OFFER = b" refs/heads/atelier/1\n"
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "header only": lambda data: b"# v2 git bundle\n",
    "no bundle": lambda data: b"not a bundle at all\n\n" + data,
    "cut off": lambda data: data[:-30],
    "overwritten": lambda data: data[:-200] + bytes(200),
    "filtered": lambda data: data.replace(b"# v2 git bundle\n", b"# v3 git bundle\n@filter=blob:none\n"),
    "ref elsewhere": lambda data: data.replace(OFFER, b" refs/heads/../../hooks/x\n"),
    "ref is an option": lambda data: data.replace(OFFER, b" --upload-pack=touch\n"),
}


@pytest.mark.parametrize("kind", DAMAGE)
async def test_damage_is_noticed(host: HostRepository, work: Checkout, base: str, kind: str) -> None:
    work.commit("work", {"b": "2\n" * 500})
    await rejected(host, DAMAGE[kind](work.bundle(REF, f"^{base}")), base, "bundle is not taken")


def plant(work: Checkout, entries: list[tuple[str, bytes, bytes]]) -> None:
    """Commit a tree of (mode, name, content) that git itself would not let anyone make."""
    tree = b""
    for mode, name, content in entries:
        kind = "tree" if mode == "40000" else "blob"
        blob = work.git("hash-object", "-w", "--literally", "-t", kind, "--stdin", stdin=content)
        tree += mode.encode() + b" " + name + b"\0" + bytes.fromhex(blob)
    made = work.git("hash-object", "-w", "--literally", "-t", "tree", "--stdin", stdin=tree)
    commit = work.git("commit-tree", "-p", "HEAD", "-m", "evil", made)
    work.git("update-ref", REF, commit)


EVIL_MODULES = b'[submodule "x"]\n\tpath = x\n\turl = -u./payload\n'
EVIL_NAME = b'[submodule "../../hooks"]\n\tpath = x\n\turl = https://example.org/x\n'


@pytest.mark.parametrize(
    "entries",
    [
        [("100644", b".gitmodules", EVIL_MODULES)],
        [("100644", b".gitmodules", EVIL_NAME)],
        [("120000", b".gitmodules", b"../elsewhere")],
        [("100644", b".git", b"gitdir: /elsewhere")],
        [("100644", b".GIT", b"x")],
        [("100644", b"..", b"x")],
        [("100644", b"../escape", b"x")],
        [("100644", b"git~1", b"x")],
        [("100644", b"a", b"x"), ("100644", b"a", b"y")],
    ],
    ids=lambda entries: entries[0][1].decode() + entries[0][0],
)  # fmt: skip
async def test_objects_that_attack_a_checkout_are_refused(
    host: HostRepository, work: Checkout, base: str, entries: list[tuple[str, bytes, bytes]]
) -> None:
    plant(work, entries)
    await rejected(host, work.bundle(REF, f"^{base}"), base, "bundle is not taken")


async def test_an_evil_file_in_the_middle_of_the_history_is_refused(
    host: HostRepository, work: Checkout, base: str
) -> None:
    plant(work, [("100644", b".gitmodules", EVIL_MODULES)])
    work.git("update-ref", REF, work.git("commit-tree", "-p", REF, "-m", "hide", f"{base}^{{tree}}"))
    await rejected(host, work.bundle(REF, f"^{base}"), base, "gitmodules")


async def test_links_are_content_and_lead_nowhere(host: HostRepository, work: Checkout, base: str) -> None:
    (work.path / "passwd").symlink_to("/etc/passwd")
    head = work.commit("link")
    await host.import_bundle(work.bundle(REF, f"^{base}"), ref=REF, expected_parent=base)
    assert await host.read_file(head, "passwd") is None
    assert (await host.diff(base, head)).text.endswith(b"+/etc/passwd\n\\ No newline at end of file\n")


async def test_what_an_agent_plants_in_its_repository_never_runs_on_the_host(
    host: HostRepository, work: Checkout, base: str, tmp_path: Path
) -> None:
    flag = tmp_path / "ran"
    program = work.write(".git/evil.sh", f"#!/bin/sh\ntouch {flag}\ncat\n")
    program.chmod(0o755)
    head = work.commit("work", {".gitattributes": "* filter=evil diff=evil merge=evil\n", "b": "2\n"})
    data = work.bundle(REF, f"^{base}")
    for key in ("core.fsmonitor", "core.pager", "core.editor", "diff.external", "diff.evil.textconv",
                "diff.evil.command", "filter.evil.clean", "filter.evil.smudge", "core.sshCommand",
                "uploadpack.packObjectsHook", "core.gitProxy", "credential.helper"):  # fmt: skip
        work.git("config", key, str(program))
    for hook in ("pre-commit", "post-checkout", "reference-transaction", "post-merge", "pre-push", "post-index-change"):
        work.write(f".git/hooks/{hook}", program.read_bytes()).chmod(0o755)
    await host.import_bundle(data, ref=REF, expected_parent=base)
    await host.diff(base, head)
    await host.merge({"one": head}, base)
    await host.bundle([REF])
    assert not flag.exists()
