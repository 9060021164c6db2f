"""What can go wrong with git, as types, and how git's own words become one. Not here: running it."""

from __future__ import annotations

import re

from atelier_dagster.factory.errors import AtelierError, InvalidInput, NotFound, TimedOut, Unavailable


class GitFailed(AtelierError):
    """Git ended with an error that has no type of its own."""

    code = "GIT_FAILED"


class GitTimedOut(TimedOut):
    """Git took longer than its time limit and was stopped."""

    code = "GIT_TIMEOUT"


class GitOutputTooLarge(AtelierError):
    """Git printed more than the caller allows."""

    code = "GIT_OUTPUT_LIMIT"


class GitAuthFailed(AtelierError):
    """The remote asked for a credential, or refused the one it got."""

    code = "GIT_AUTH"


class GitUnavailable(Unavailable):
    """The remote could not be reached, or answered with a server error."""

    code = "GIT_UNAVAILABLE"


class RemoteNotFound(NotFound):
    """The remote says that there is no such repository."""

    code = "GIT_REMOTE_NOT_FOUND"


class PushRejected(AtelierError):
    """The remote did not take the commit: its ref moved, or a rule of its own forbids it."""

    code = "PUSH_REJECTED"


class InvalidRef(InvalidInput):
    """A branch, ref or commit name that git would not accept, or would read as something else."""

    code = "INVALID_REF"


_REMOTE = {"ls-remote", "fetch", "push"}
"""Commands whose failure another machine may have caused."""
_AUTH = re.compile(
    r"authentication failed|could not read (username|password)|invalid credentials|permission denied|"
    r"returned error: 40[13]|terminal prompts disabled|host key verification failed",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"repository .*not found|does not appear to be a git repository|returned error: 404|does not exist", re.IGNORECASE
)
_UNREACHABLE = re.compile(
    r"could not resolve|failed to connect|connection (refused|reset|timed out)|operation timed out|"
    r"returned error: (5\d\d|429)|early eof|remote end hung up|ssl|network is unreachable|transfer closed",
    re.IGNORECASE,
)


def classify(argv: tuple[str, ...], code: int, stderr: str) -> AtelierError:
    """The error for a failed git command. `stderr` must be free of secrets already."""
    command = argv[0] if argv else "git"
    said = _tail(stderr) or f"exit code {code}, nothing said"
    message = f"git {command} failed: {said}"
    if "dubious ownership" in stderr:
        return GitFailed(message, fix="run as the user who owns the repository")
    if command not in _REMOTE:
        return GitFailed(message)
    if _AUTH.search(stderr):
        return GitAuthFailed(message, fix="check the user name and token configured for this forge")
    if _MISSING.search(stderr):
        return RemoteNotFound(message, fix="check the repository's address and that the configured user may see it")
    if _UNREACHABLE.search(stderr):
        return GitUnavailable(message, fix="check that the forge is up and reachable")
    return GitFailed(message)


def _tail(text: str, limit: int = 2000) -> str:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines)[-limit:]
