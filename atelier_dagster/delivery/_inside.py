"""Git inside a workshop, through its exec channel: prepare, commit, bundle out. Nothing here runs on the host."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

from atelier_dagster.factory.errors import WorkshopFailed
from atelier_dagster.gitio import Identity, branch_ref
from atelier_dagster.ports import ExecRequest, ExecResult, Workshops

NEEDS_COMMIT = 3
"""Exit code of `PREPARE` when the commit to start from is not there yet."""

_CONFIG = {
    # An agent may have configured its own repository in ways that keep a commit from being made, or change it.
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.excludesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.quotePath": "false",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "safe.directory": "*",
    "advice.addEmbeddedRepo": "false",
}

FIND = """
git rev-parse -q --verify "refs/atelier/done/$2^{commit}" && exit 0
git log -1 --format=%H --fixed-strings --grep="$3" HEAD "refs/heads/$1" -- 2>/dev/null ||
git log -1 --format=%H --fixed-strings --grep="$3" HEAD -- 2>/dev/null
exit 0
"""
"""Print the commit of an attempt, if it was made. $1 branch, $2 attempt, $3 trailer."""

PREPARE = """
set -eu
branch=$1 start=$2 attempt=$3 bundle=$4
dir=$(git rev-parse --absolute-git-dir)
git rev-parse -q --verify "refs/atelier/started/$attempt" >/dev/null && exit 0
rm -f "$dir/index.lock" "$dir/HEAD.lock"
if [ -n "$bundle" ]; then
  git fetch -q --no-tags --no-write-fetch-head -- "$bundle" "+refs/atelier/*:refs/atelier/*"
  rm -f -- "$bundle"
fi
if [ -n "$start" ]; then
  if ! git cat-file -e "$start^{commit}" 2>/dev/null; then
    git rev-parse -q --verify "HEAD^{commit}" || true
    exit 3
  fi
  git update-ref "refs/heads/$branch" "$start"
  git symbolic-ref HEAD "refs/heads/$branch"
  git reset -q --hard
else
  git symbolic-ref HEAD "refs/heads/$branch"
fi
git update-ref "refs/atelier/started/$attempt" "$(git hash-object -w --stdin </dev/null)"
"""
"""Put the checkout on its branch at the commit to start from, once an attempt. $4 a bundle that brings it, or ""."""

COMMIT = """
set -u
branch=$1 start=$2 attempt=$3
dir=$(git rev-parse --absolute-git-dir) || exit 4
rm -f "$dir/index.lock" "$dir/HEAD.lock"
git ls-files -z -o --exclude-standard | tr '\\0' '\\n' | sed -n 's:/$::p' |
  while IFS= read -r inner; do rm -rf -- "./$inner/.git"; done
git add -A --ignore-errors -- . ":(exclude,top).qa-evidence" || echo "not everything could be added" >&2
failed=0
git diff --cached --quiet --no-ext-diff --ignore-submodules=none || git commit -q --no-verify -F - || failed=5
head=$(git rev-parse -q --verify "HEAD^{commit}") || head=
tip=$(git rev-parse -q --verify "refs/heads/$branch^{commit}") || tip=
if [ "$head" = "$start" ] && [ -n "$tip" ]; then head=$tip; fi
if [ -n "$head" ]; then
  git update-ref "refs/heads/$branch" "$head"
  git update-ref "refs/atelier/done/$attempt" "$head"
fi
echo "$head"
exit $failed
"""
"""Commit whatever is there and print the head. Repositories that an agent made inside become plain directories."""

BUNDLE = """
set -eu
branch=$1 start=$2
out=$(git rev-parse --absolute-git-dir)/atelier.bundle
git bundle create -q "$out" "refs/heads/$branch" ${start:+"^$start"}
echo "$out"
"""
"""Write the branch into a bundle and print its path."""

CLONE = """
set -eu
directory=$1 bundle=$2 head=$3 start=$4 checkout=$5
rm -rf -- "$directory"
mkdir -p -- "$directory"
git init -q -- "$directory"
cd -- "$directory"
if [ -n "$start" ]; then
  git fetch -q --no-tags --no-write-fetch-head -- "$checkout" "$start:refs/atelier/start" || exit 3
fi
git fetch -q --no-tags --no-write-fetch-head -- "$bundle" "+refs/atelier/*:refs/atelier/*"
git checkout -q --detach "$head"
rm -f -- "$bundle"
"""
"""A fresh clone in $1 of the bundle $2 at commit $3. History up to $4 comes from the checkout $5: git checks what it
gets by its name, so an agent cannot change any of it."""


def short(text: str) -> str:
    """A name for refs, paths and ids, made of any text."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:24]


def exec_id(text: str) -> str:
    """An exec id: the text itself where it is plain, else its hash."""
    return text if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text) else short(text)


@dataclass(frozen=True)
class Inside:
    """Runs our own scripts in one workshop. Arguments reach them as such and are never part of their text."""

    workshops: Workshops
    name: str
    identity: Identity = Identity("Atelier agent", "agent@atelier.invalid")  # noqa: RUF009
    timeout: float = 300.0

    async def script(
        self, script: str, *argv: str, stdin: bytes = b"", ok: tuple[int, ...] = (0,), id_: str = ""
    ) -> ExecResult:
        """Run one; by default under an id of its own, as each may run again. Raises `WorkshopFailed`."""
        request = ExecRequest(
            id=id_ or f"git-{secrets.token_hex(8)}",
            argv=("sh", "-c", script, "atelier", *argv),
            env=self._environment(),
            stdin=stdin,
            timeout=self.timeout,
        )
        result = await self.workshops.exec(self.name, request)
        if result.exit_code not in ok:
            ended = result.reason or f"exit code {result.exit_code}"
            said = tail(result.stderr, 2000)
            raise WorkshopFailed(f"git in workshop {self.name} failed ({ended}): {said}", fix="look at the workshop")
        return result

    def _environment(self) -> dict[str, str]:
        env = {
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_AUTHOR_NAME": self.identity.name,
            "GIT_AUTHOR_EMAIL": self.identity.email,
            "GIT_COMMITTER_NAME": self.identity.name,
            "GIT_COMMITTER_EMAIL": self.identity.email,
            "GIT_CONFIG_COUNT": str(len(_CONFIG)),
        }
        for number, (key, value) in enumerate(_CONFIG.items()):
            env[f"GIT_CONFIG_KEY_{number}"], env[f"GIT_CONFIG_VALUE_{number}"] = key, value
        return env


def tail(data: bytes, limit: int) -> str:
    """The end of some output as text."""
    return data.decode("utf-8", "replace").strip()[-limit:]


def check_branch(branch: str) -> str:
    """A branch name that is safe behind `refs/heads/`. Raises `InvalidRef`."""
    return branch_ref(branch).removeprefix("refs/heads/")
