"""Checks of names that come from outside: refs, branches, commits, remotes. Not here: what they point to."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.gitio._errors import InvalidRef

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Git's name for a tree without entries; every repository knows it."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
_SCHEMES = {"https", "http", "ssh", "file", "git"}
_SCP_LIKE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:(?!:)[^\s]+")
_MAX_NAME = 500


def check_commit(name: str) -> str:
    """A full lower-case SHA-1 commit name, returned as it is. Raises `InvalidRef`."""
    if not _COMMIT.fullmatch(name):
        raise InvalidRef(f"{name[:100]!r} is not a full commit name", fix="give all 40 hexadecimal digits")
    return name


def check_ref(ref: str) -> str:
    """A full ref name (`refs/...`) by the rules of git-check-ref-format, returned as it is. Raises `InvalidRef`."""
    parts = ref.split("/")
    bad = (
        not ref.startswith("refs/")
        or len(parts) < 3
        or len(ref) > _MAX_NAME
        or _FORBIDDEN.search(ref) is not None
        or ref.endswith((".", "/"))
        or any(not part or part.startswith(".") or part.endswith(".lock") for part in parts)
    )
    if bad:
        raise InvalidRef(f"{ref[:100]!r} is not a valid ref name", fix="see git-check-ref-format(1)")
    return ref


def branch_ref(branch: str) -> str:
    """`refs/heads/<branch>`: never a tag of the same name, never read as an option. Raises `InvalidRef`."""
    if branch in ("HEAD", "@"):
        raise InvalidRef(f"{branch!r} cannot name a branch", fix="choose another branch name")
    return check_ref(f"refs/heads/{branch}")


def check_remote_url(url: str) -> str:
    """A URL or absolute path that git may be given, without a credential in it. Raises `InvalidInput`."""
    if not url or url.startswith("-") or any(ord(c) < 0x20 for c in url):
        raise InvalidInput("the repository's address is empty or has control characters", fix="give a URL or a path")
    if url.startswith("/") or _SCP_LIKE.fullmatch(url):
        return url
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or "::" in url.split("/", 1)[0]:
        raise InvalidInput(
            f"repository address with scheme {parts.scheme!r} is not supported", fix="use https, ssh or a path"
        )
    if parts.password is not None or (parts.username and parts.scheme in ("http", "https")):
        raise InvalidInput(
            "the repository's address has a credential in it", fix="remove it and configure user name and token"
        )
    return url
