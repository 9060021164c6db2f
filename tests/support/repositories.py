"""Real git repositories for tests, made the way people and agents make them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_ENV = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "LC_ALL": "C",
}


def git(directory: Path, *argv: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> str:
    """Run git as a person would; returns what it printed."""
    done = subprocess.run(
        ["git", *argv],
        cwd=directory,
        input=stdin,
        capture_output=True,
        env={"PATH": os.environ["PATH"], **_ENV, **(env or {})},
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, f"git {argv}: {done.stderr.decode(errors='replace')}"
    return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


@dataclass(frozen=True)
class Checkout:
    """A repository with a work tree."""

    path: Path

    def git(self, *argv: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> str:
        """Run git in it."""
        return git(self.path, *argv, stdin=stdin, env=env)

    def write(self, name: str, content: bytes | str = "content\n") -> Path:
        """Write a file."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def commit(self, message: str = "change", files: Mapping[str, bytes | str] | None = None) -> str:
        """Write files, commit everything, and return the commit."""
        for name, content in (files or {}).items():
            self.write(name, content)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.head

    @property
    def head(self) -> str:
        """The present commit."""
        return self.git("rev-parse", "HEAD")

    def branch(self, name: str, start: str = "HEAD") -> None:
        """Make a branch and switch to it."""
        self.git("checkout", "-q", "-b", name, start)

    def bundle(self, *argv: str) -> bytes:
        """A bundle's bytes."""
        path = self.path / ".git" / "out.bundle"
        self.git("bundle", "create", "-q", str(path), *argv)
        return path.read_bytes()


def checkout(path: Path, branch: str = "main") -> Checkout:
    """A new, empty repository with a work tree."""
    path.mkdir(parents=True, exist_ok=True)
    git(path, "init", "-q", "-b", branch)
    return Checkout(path)


def bare(path: Path, branch: str = "main") -> Path:
    """A new, empty bare repository."""
    path.mkdir(parents=True, exist_ok=True)
    git(path, "init", "-q", "--bare", "-b", branch)
    return path
