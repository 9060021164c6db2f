"""Write-once objects on a directory: atomicity, hostile names and links, full and forbidden disks."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier_dagster.artifacts import DirectoryStore
from atelier_dagster.artifacts import _directory as module
from atelier_dagster.artifacts._keys import check_key, join_key
from atelier_dagster.factory.errors import AtelierError, InvalidInput, NotFound, Refused, Unavailable
from atelier_dagster.ports import ObjectStore

HOSTILE = [
    "",
    "/",
    "/etc/passwd",
    "..",
    ".",
    "a/../b",
    "../../etc/passwd",
    "a//b",
    "a/",
    "a/./b",
    "a\\b",
    "a b",
    "a\nb",
    "a\0b",
    "café",
    "a+b",
    "x" * 256,
    "/".join(["x" * 200] * 6),
]


def staged(root: Path) -> list[str]:
    return [entry.name for entry in (root / "+staging").iterdir()]


async def test_it_is_an_object_store(directory: DirectoryStore) -> None:
    assert isinstance(directory, ObjectStore)


async def test_what_was_put_is_read_back_and_never_replaced(directory: DirectoryStore, root: Path) -> None:
    assert await directory.put_if_absent("a/b~c/d.json", b"first")
    assert not await directory.put_if_absent("a/b~c/d.json", b"second")
    assert await directory.get("a/b~c/d.json") == b"first"
    assert await directory.exists("a/b~c/d.json")
    assert staged(root) == []


async def test_of_many_writers_exactly_one_wins(directory: DirectoryStore) -> None:
    bodies = [f"writer {number}".encode() * 1000 for number in range(40)]
    won = await asyncio.gather(*(directory.put_if_absent("race/one", body) for body in bodies))
    assert won.count(True) == 1
    assert await directory.get("race/one") == bodies[won.index(True)]


async def test_missing_objects_are_not_found_and_do_not_exist(directory: DirectoryStore) -> None:
    assert not await directory.exists("nothing/here")
    assert list(await directory.list("nothing")) == []
    with pytest.raises(NotFound):
        await directory.get("nothing/here")


async def test_a_list_is_one_folder_and_below(directory: DirectoryStore) -> None:
    for key in ["l/t~1/2", "l/t~1/1", "l/t~10/1", "l/t~1/deep/er/3", "other"]:
        await directory.put_if_absent(key, b"")
    assert list(await directory.list("l/t~1")) == ["l/t~1/1", "l/t~1/2", "l/t~1/deep/er/3"]
    assert await directory.list("l/t~1/") == await directory.list("l/t~1")
    assert list(await directory.list("")) == ["l/t~1/1", "l/t~1/2", "l/t~1/deep/er/3", "l/t~10/1", "other"]


@pytest.mark.parametrize("key", HOSTILE)
async def test_hostile_keys_are_refused_by_every_method(directory: DirectoryStore, root: Path, key: str) -> None:
    with pytest.raises(InvalidInput):
        await directory.put_if_absent(key, b"x")
    with pytest.raises(InvalidInput):
        await directory.get(key)
    with pytest.raises(InvalidInput):
        await directory.exists(key)
    if key not in {"", "/", "a/"}:
        with pytest.raises(InvalidInput):
            await directory.list(key)
    assert not root.exists()


@given(st.text())
def test_no_text_becomes_a_key_that_leaves_its_folder(text: str) -> None:
    try:
        segments = check_key(text)
    except InvalidInput:
        return
    root = Path("/store")
    assert root in Path(os.path.normpath(root / text)).parents
    assert all(segment not in {"", ".", ".."} for segment in segments)


@pytest.mark.parametrize("part", ["a/b", "", "..", "/"])
def test_a_segment_is_never_split(part: str) -> None:
    with pytest.raises(InvalidInput):
        join_key("artifacts", part)


async def test_links_below_the_root_are_never_followed(directory: DirectoryStore, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    await directory.put_if_absent("folder/real", b"x")
    (root / "linked").symlink_to(outside)
    (root / "folder" / "file").symlink_to(outside / "secret")
    for call in (
        directory.get("linked/secret"),
        directory.get("folder/file"),
        directory.put_if_absent("linked/n", b""),
    ):
        with pytest.raises(Refused):
            await call
    assert not await directory.put_if_absent("folder/file", b"over the link")
    assert (outside / "secret").read_bytes() == b"secret"
    assert not await directory.exists("folder/file")
    assert list(await directory.list("")) == ["folder/real"]
    assert [entry.name for entry in outside.iterdir()] == ["secret"]


async def test_a_planted_pipe_or_folder_is_refused_at_once(directory: DirectoryStore, root: Path) -> None:
    await directory.put_if_absent("a/b", b"x")
    os.mkfifo(root / "a" / "pipe")
    for key in ("a/pipe", "a", "a/b/c"):
        with pytest.raises(Refused):
            await asyncio.wait_for(directory.get(key), 5)


async def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    store = DirectoryStore(tmp_path / "store")
    assert await store.put_if_absent("a/b", b"x")
    assert (tmp_path / "disk" / "a" / "b").read_bytes() == b"x"
    assert list(await store.list("")) == ["a/b"]


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (errno.ENOSPC, Unavailable, "DISK_FULL"),
        (errno.EDQUOT, Unavailable, "DISK_FULL"),
        (errno.EFBIG, Unavailable, "DISK_FULL"),
        (errno.EROFS, Refused, "REFUSED"),
        (errno.EACCES, Refused, "REFUSED"),
        (errno.EIO, Unavailable, "UNAVAILABLE"),
    ],
)
@pytest.mark.parametrize("call", ["fsync", "link", "mkdir"])
async def test_a_disk_that_fails_is_a_typed_error_and_leaves_nothing(
    directory: DirectoryStore,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    kind: type[AtelierError],
    code: str,
) -> None:
    await directory.put_if_absent("first", b"x")

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(module.os, call, fail)
        with pytest.raises(kind) as caught:
            await directory.put_if_absent("a/b", b"data")
    assert caught.value.code == code
    assert caught.value.fix
    assert staged(root) == []
    assert list(await directory.list("")) == ["first"]
    assert await directory.put_if_absent("a/b", b"data")


async def test_a_really_full_disk_leaves_nothing_half_written(directory: DirectoryStore, root: Path) -> None:
    import resource
    import signal

    await directory.put_if_absent("first", b"x")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(Unavailable) as caught:
            await directory.put_if_absent("big", b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.code == "DISK_FULL"
    assert not caught.value.transient
    assert staged(root) == []
    assert not await directory.exists("big")


async def test_leftovers_of_killed_writers_are_swept_once_old(root: Path) -> None:
    staging = root / "+staging"
    staging.mkdir(parents=True)
    (staging / "old").write_bytes(b"half")
    (staging / "young").write_bytes(b"half")
    long_ago = time.time() - 3 * 24 * 3600
    os.utime(staging / "old", (long_ago, long_ago))
    await DirectoryStore(root).put_if_absent("a", b"x")
    assert staged(root) == ["young"]


async def test_preflight_tries_it_and_leaves_nothing(directory: DirectoryStore, root: Path, tmp_path: Path) -> None:
    (check,) = await directory.preflight()
    assert check.ok
    assert list(await directory.list("")) == []
    assert staged(root) == []
    (tmp_path / "file").write_bytes(b"")
    (check,) = await DirectoryStore(tmp_path / "file").preflight()
    assert not check.ok
    assert check.fix
