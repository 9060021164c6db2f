"""Files that several processes share: atomic writes, locks, careful reads. Not here: what is in them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

from atelier_dagster.factory.errors import InvalidInput, NotFound, TimedOut


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file so that a reader, or a crash at any moment, sees the old content or the new."""
    temporary = _write_beside(path, data, mode)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def create_atomic(path: Path, data: bytes, mode: int = 0o644) -> bool:
    """Create a file with its whole content; False when the name is taken already."""
    temporary = _write_beside(path, data, mode)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)
    return True


def read_regular(path: Path, limit: int) -> tuple[bytes, os.stat_result]:
    """Content and status of a regular file. Links are not followed, and nothing but a file is opened for long.

    Raises `NotFound`, and `InvalidInput` for links, devices, pipes, and files of more than `limit` bytes.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", fix="make it a readable regular file") from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise InvalidInput(f"{path} is not a regular file", fix="make it a regular file")
    with os.fdopen(fd, "rb") as file:
        if status.st_size > limit:
            raise InvalidInput(f"{path} is larger than {limit} bytes", fix="shorten it")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise InvalidInput(f"{path} is larger than {limit} bytes", fix="shorten it")
    return data, status


@contextlib.asynccontextmanager
async def file_lock(path: Path, timeout: float = 30.0) -> AsyncGenerator[None]:
    """Hold an exclusive lock, among processes and tasks alike, on a file that may stay. Raises `TimedOut`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        await _acquire(fd, path, timeout)
        yield
    finally:
        os.close(fd)


async def _acquire(fd: int, path: Path, timeout: float) -> None:
    pause = 0.002
    try:
        async with asyncio.timeout(timeout):
            while not _try_lock(fd):
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 0.1)
    except TimeoutError:
        raise TimedOut(f"{path} stayed locked for {timeout:g} s", fix="see which process holds it: fuser -v") from None


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_beside(path: Path, data: bytes, mode: int) -> Path:
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
