"""Git on the host: one runner with an environment of its own, name checks, typed errors. Refs are moved elsewhere."""

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
from atelier_dagster.gitio._objects import (
    Change,
    MergedTree,
    change,
    changed_paths,
    contains,
    count_changed_files,
    fork_point,
    merge_trees,
    read_file,
    ref_commit,
    root_entries,
    shown,
)
from atelier_dagster.gitio._runner import Git, Identity, Output

__all__ = [
    "EMPTY_TREE",
    "Change",
    "Git",
    "GitAuthFailed",
    "GitFailed",
    "GitOutputTooLarge",
    "GitTimedOut",
    "GitUnavailable",
    "Identity",
    "InvalidRef",
    "MergedTree",
    "Output",
    "PushRejected",
    "RemoteNotFound",
    "branch_ref",
    "change",
    "changed_paths",
    "check_commit",
    "check_ref",
    "check_remote_url",
    "contains",
    "count_changed_files",
    "fork_point",
    "merge_trees",
    "read_file",
    "ref_commit",
    "root_entries",
    "shown",
]
