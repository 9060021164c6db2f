"""Becoming an unprivileged user before bubblewrap, with the paths it is to mount put where that user can reach them."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWNS = 0x20000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
STAGE = "/tmp"  # noqa: S108 - exists everywhere; covered by a tmpfs in a mount namespace of our own


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    def encode(text: str | None) -> bytes | None:
        return text.encode() if text is not None else None

    _call("mount", encode(source), target.encode(), encode(kind), ctypes.c_ulong(flags), encode(data))


def staged(index: int) -> str:
    """Where the source of that index is found after `stage`."""
    return f"{STAGE}/{index}"


def stage(sources: Sequence[str]) -> None:
    """Bind each source below `STAGE` in a new mount namespace, so that no parent directory's mode is in the way.

    For a process about to exec: everything else that was in `STAGE` is out of sight afterwards. Needs root.
    """
    _call("unshare", CLONE_NEWNS)
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    fds = [os.open(source, os.O_PATH) for source in sources]
    _mount("tmpfs", STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for index, fd in enumerate(fds):
        target = Path(staged(index))
        if stat.S_ISDIR(os.fstat(fd).st_mode):  # by descriptor: the path may be out of sight by now
            target.mkdir()
        else:
            target.touch()
        _mount(f"/proc/self/fd/{fd}", str(target), None, MS_BIND | MS_REC)
        os.close(fd)


def become(uid: int) -> None:
    """Give up root for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def usable_uids(first: int, last: int) -> bool:
    """Whether this user namespace can express those user ids (a nested container often cannot)."""
    return all(_mapped(path, first, last) for path in ("/proc/self/uid_map", "/proc/self/gid_map"))


def _mapped(path: str, first: int, last: int) -> bool:
    ranges = [[int(part) for part in line.split()] for line in Path(path).read_text().splitlines()]
    return any(start <= first and last < start + count for start, _, count in ranges)
