"""Objects as files in one directory. Belongs here: atomic writes, links, disk errors. Not here: what they mean."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from atelier_dagster.artifacts._keys import check_key, check_prefix
from atelier_dagster.factory.errors import AtelierError, NotFound, Refused, Unavailable
from atelier_dagster.ports import Check

_STAGING = "+staging"
"""Holds unfinished writes. `+` occurs in no key, so nothing stored can be taken for one, or the other way round."""
_STALE_AFTER = 24 * 3600.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_LINKED = {errno.ENOTDIR, errno.ELOOP, errno.EISDIR}


class DirectoryStore:
    """An `ObjectStore` on a local file system with hard links.

    Every write is staged, synced, then linked to its name: link never overwrites, so of many writers one wins.
    Folders are opened one by one relative to their parent, so no link planted below the root is ever followed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._swept = False

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self._root)!r})"

    async def put_if_absent(self, key: str, data: bytes, media_type: str = "application/octet-stream") -> bool:
        """See `ObjectStore`. A file system keeps no media type. A full disk is `Unavailable` with code DISK_FULL."""
        del media_type
        segments = check_key(key)
        return await asyncio.to_thread(self._put, segments, data)

    async def get(self, key: str) -> bytes:
        """See `ObjectStore`. A link or anything else that is no regular file is `Refused`."""
        segments = check_key(key)
        return await asyncio.to_thread(self._get, segments)

    async def exists(self, key: str) -> bool:
        """See `ObjectStore`."""
        segments = check_key(key)
        return await asyncio.to_thread(self._exists, segments)

    async def list(self, prefix: str) -> Sequence[str]:
        """Keys in the folder `prefix` and below it, sorted."""
        segments = check_prefix(prefix)
        return await asyncio.to_thread(self._list, segments)

    async def preflight(self) -> Sequence[Check]:
        """Stage, sync, link, read and remove a small file."""
        name = "artifacts: directory"
        try:
            await asyncio.to_thread(self._probe)
        except AtelierError as error:
            return [Check(name, ok=False, detail=error.message, fix=error.fix)]
        return [Check(name, ok=True, detail=f"{self._root} can be written and read")]

    # ------------------------------------------------------------------------------------------- blocking part

    def _put(self, segments: tuple[str, ...], data: bytes) -> bool:
        key = "/".join(segments)
        with _translated(key):
            self._root.mkdir(parents=True, exist_ok=True)
            with self._folder((_STAGING,), make=True) as staging, self._folder(segments[:-1], make=True) as folder:
                self._sweep(staging)
                return _write_once(staging, folder, segments[-1], data)

    def _get(self, segments: tuple[str, ...]) -> bytes:
        with _translated("/".join(segments)), self._folder(segments[:-1]) as folder:
            # O_NONBLOCK: opening a planted FIFO must not wait for its other end
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(segments[-1], flags, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.ELOOP, "not a regular file")
                return file.read()

    def _exists(self, segments: tuple[str, ...]) -> bool:
        with _translated("/".join(segments)):
            try:
                with self._folder(segments[:-1]) as folder:
                    mode = os.stat(segments[-1], dir_fd=folder, follow_symlinks=False).st_mode
            except FileNotFoundError:
                return False
            return stat.S_ISREG(mode)

    def _list(self, segments: tuple[str, ...]) -> Sequence[str]:
        start = self._root.joinpath(*segments)
        with _translated("/".join(segments)):
            try:
                with self._folder(segments):
                    pass
            except FileNotFoundError:
                return []
            return sorted(file.relative_to(self._root).as_posix() for file in _regular_files(start))

    def _probe(self) -> None:
        name = f"probe-{uuid.uuid4().hex}"
        with _translated(name):
            self._root.mkdir(parents=True, exist_ok=True)
            with self._folder((_STAGING,), make=True) as staging:
                _write_once(staging, staging, name, b"probe")
                os.unlink(name, dir_fd=staging)

    @contextmanager
    def _folder(self, segments: tuple[str, ...], *, make: bool = False) -> Generator[int]:
        # the root may itself be a link: it is the operator's choice, everything below it is ours
        current = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for segment in segments:
                deeper = _open_folder(current, segment, make=make)
                os.close(current)
                current = deeper
            yield current
        finally:
            os.close(current)

    def _sweep(self, staging: int) -> None:
        """Remove, once a process, what writers that were killed have left."""
        if self._swept:
            return
        self._swept = True
        oldest = time.time() - _STALE_AFTER
        for name in os.listdir(staging):
            with suppress(FileNotFoundError):
                if os.stat(name, dir_fd=staging, follow_symlinks=False).st_mtime < oldest:
                    os.unlink(name, dir_fd=staging)


def _open_folder(parent: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
        os.fsync(parent)
    return os.open(name, _FOLDER, dir_fd=parent)


def _write_once(staging: int, folder: int, name: str, data: bytes) -> bool:
    temporary = uuid.uuid4().hex
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=staging)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(temporary, name, src_dir_fd=staging, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return False
        os.fsync(folder)
        return True
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=staging)


def _regular_files(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if "+" in entry.name:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _regular_files(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path)


@contextmanager
def _translated(key: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise _typed(error, key) from error


def _typed(error: OSError, key: str) -> AtelierError:
    reason = error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        return NotFound(f"there is no object {key!r}", fix="materialize the asset that writes it")
    if error.errno in _FULL:
        return Unavailable(
            f"the disk of the artifact store is full: {key!r} was not written",
            fix="free space or raise the quota, then run the step again",
            code="DISK_FULL",
            transient=False,
        )
    if error.errno in _LINKED:
        return Refused(
            f"{key!r} would pass through a link or file where a folder or object belongs",
            fix="remove what does not belong in the artifact store",
        )
    if error.errno in _DENIED:
        return Refused(
            f"the file system refuses {key!r}: {reason}",
            fix="give this user write permission on a file system with hard links",
        )
    return Unavailable(f"the file system failed on {key!r}: {reason}", fix="check the disk, then try again")
