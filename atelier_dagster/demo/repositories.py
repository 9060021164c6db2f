"""Sample repositories: file trees in `samples/`, made into bare git repositories with a history."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path

from atelier_dagster.factory.errors import InvalidInput, NotFound

_LIMIT = 60.0
"""Seconds for one git command."""
_HISTORY: dict[str, Sequence[tuple[str, tuple[str, ...]]]] = {
    "bookshelf": (
        ("Keep books in memory", (".gitignore", "bookshelf/__init__.py", "bookshelf/store.py")),
        ("Answer for the shelf over HTTP", ("bookshelf/*",)),
        ("Test the shelf and say how to run it", ("*",)),
    ),
}


def names() -> Sequence[str]:
    """Names of all sample repositories."""
    return sorted(_HISTORY)


def build(name: str | None, target: Path, *, branch: str = "main") -> None:
    """Make a bare repository at `target`, which must not exist; `name` None makes one without commits.

    The same name and branch always give the same commits. Raises `NotFound`, `InvalidInput`.
    """
    if name is not None and name not in _HISTORY:
        raise NotFound(f"there is no sample repository {name!r}", fix=f"one of {', '.join(names())}")
    if target.exists():
        raise InvalidInput(f"{target} exists already", fix="remove it, or give another path")
    target.parent.mkdir(parents=True, exist_ok=True)
    _git(target.parent, "init", "--quiet", "--bare", f"--initial-branch={branch}", "--", str(target))
    if name is not None:
        with tempfile.TemporaryDirectory(prefix="atelier-sample-") as folder:
            _commit_all(name, Path(folder) / "tree", branch)
            _git(Path(folder) / "tree", "push", "--quiet", str(target), f"{branch}:{branch}")


def _commit_all(name: str, tree: Path, branch: str) -> None:
    with resources.as_file(resources.files("atelier_dagster.demo").joinpath("samples", name)) as source:
        shutil.copytree(source, tree, ignore=shutil.ignore_patterns("__pycache__"))
    files = sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
    _git(tree, "init", "--quiet", f"--initial-branch={branch}")
    for day, (message, patterns) in enumerate(_HISTORY[name], start=1):
        chosen = [file for file in files if any(fnmatch(file, pattern) for pattern in patterns)]
        _git(tree, "add", "--", *chosen)
        _git(tree, "commit", "--quiet", "-m", message, day=day)


def _git(folder: Path, *arguments: str, day: int = 1) -> None:
    """Run git with a fixed identity and date, and without this machine's configuration or hooks."""
    who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in _identity(day).items()}
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        **who,
    }
    done = subprocess.run(
        ("git", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *arguments),
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    if done.returncode:
        raise InvalidInput(
            f"git {arguments[0]} failed: {done.stderr.strip()[-500:]}", fix="see whether git is installed"
        )


def _identity(day: int) -> dict[str, str]:
    return {"NAME": "Ada Sample", "EMAIL": "ada@example.org", "DATE": f"2025-03-{day:02d}T12:00:00+00:00"}
