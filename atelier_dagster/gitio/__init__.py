"""Git on the host: one runner with an environment of its own, name checks, typed errors. No repository logic."""

from atelier_dagster.gitio._errors import (
    GitAuthFailed,
    GitFailed,
    GitOutputTooLarge,
    GitTimedOut,
    GitUnavailable,
    InvalidRef,
    PushRejected,
    RemoteNotFound,
)
from atelier_dagster.gitio._names import EMPTY_TREE, branch_ref, check_commit, check_ref, check_remote_url
from atelier_dagster.gitio._runner import Git, Identity, Output

__all__ = [
    "EMPTY_TREE",
    "Git",
    "GitAuthFailed",
    "GitFailed",
    "GitOutputTooLarge",
    "GitTimedOut",
    "GitUnavailable",
    "Identity",
    "InvalidRef",
    "Output",
    "PushRejected",
    "RemoteNotFound",
    "branch_ref",
    "check_commit",
    "check_ref",
    "check_remote_url",
]
