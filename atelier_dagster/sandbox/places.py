"""Where a workshop keeps things on the host, and their names inside. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from atelier_dagster.sandbox import bubblewrap

LOG_TAIL = 2000


@dataclass
class State:
    """What outlives the supervisor."""

    ready: bool = False
    """The checkout was made."""
    suspended: bool = False
    failed: str = ""
    ended: str = ""
    """Why the last supervisor ended, when it could say so."""


class Places:
    """Paths of one workshop. `data` is all that commands can write, and nothing on the host trusts what is in it."""

    def __init__(self, root: Path, *, inside: bool = True) -> None:
        self.root = root
        self.data = root / "data"
        self.home_dir, self.workdir_dir, self.tmp_dir = (self.data / name for name in ("home", "workdir", "tmp"))
        self.execs = root / "execs"
        self.metadata, self.state = root / "workshop.json", root / "state.json"
        self.lock, self.control = root / "supervisor.lock", root / "control.sock"
        self.sandbox_log, self.supervisor_log = root / "sandbox.log", root / "supervisor.log"
        self.egress_log = root / "egress.jsonl"
        self.home = bubblewrap.HOME if inside else str(self.home_dir)
        self.workdir = bubblewrap.WORKDIR if inside else str(self.workdir_dir)
        self.tmp = bubblewrap.TMP if inside else str(self.tmp_dir)

    @property
    def writable(self) -> list[Path]:
        """Directories that commands can write."""
        return [self.home_dir, self.workdir_dir, self.tmp_dir]

    def environment(self) -> dict[str, str]:
        """Variables that name a path."""
        return {"HOME": self.home, "TMPDIR": self.tmp}

    def prepare(self, uid: int | None, *, fresh: bool) -> None:
        """Make the writable directories; `fresh` empties them first (nobody but us has written there yet)."""
        if fresh:
            remove_tree(self.data)
        self.data.mkdir(exist_ok=True)
        for directory in self.writable:
            if not directory.exists():
                directory.mkdir(mode=0o700)
                if uid is not None:
                    os.chown(directory, uid, uid)

    def supervisor_alive(self) -> bool:
        """Whether a supervisor owns the workshop: it holds the lock for as long as it lives."""
        try:
            with self.lock.open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def supervisor_pid(self) -> int | None:
        """Process id of the supervisor that owns the workshop."""
        if not self.supervisor_alive():
            return None
        text = self.lock.read_text()
        return int(text) if text.isdigit() else None


def same_file(fd: int, path: Path) -> bool:
    """Whether an open file is still the one of that path."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def short_path(path: Path) -> Generator[str]:
    """A name for a socket that fits into the 108 bytes of its address, however deep the directory is."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_bytes(data)
    partial.replace(path)


def read_state(path: Path) -> State:
    """State as last written; a fresh one when there is none."""
    try:
        return State(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return State()


def tail(path: Path) -> str:
    """End of a log."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()[-LOG_TAIL:].decode(errors="replace").strip()
    return ""


def remove_tree(top: Path) -> None:
    """Remove a directory that commands wrote to: of any depth, with any modes, and never through a link.

    Subdirectories are moved up before they are emptied, so neither recursion nor path length grows with depth.
    Nothing may be running in it. Raises `OSError`.
    """
    try:
        root = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    counter = 0
    try:
        while names := os.listdir(root):  # noqa: PTH208 - by descriptor
            for name in names:
                counter = _remove_entry(root, name, counter)
    finally:
        os.close(root)
    top.rmdir()


def _remove_entry(root: int, name: str, counter: int) -> int:
    if not _is_directory(root, name):
        os.unlink(name, dir_fd=root)
        return counter
    os.chmod(name, 0o700, dir_fd=root)
    below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
    try:
        for child in os.listdir(below):  # noqa: PTH208 - by descriptor
            if not _is_directory(below, child):
                os.unlink(child, dir_fd=below)
                continue
            os.chmod(child, 0o700, dir_fd=below)
            counter += 1
            os.rename(child, f".removing-{counter}-{os.urandom(4).hex()}", src_dir_fd=below, dst_dir_fd=root)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=root)
    return counter


def _is_directory(parent: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
