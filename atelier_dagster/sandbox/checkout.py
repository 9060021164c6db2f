"""First content of a workshop: the checkout, made by git inside the sandbox from objects that the host hands in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

from atelier_dagster.sandbox.config import SourceConfig
from atelier_dagster.sandbox.execs import Exec, Outcome
from atelier_dagster.sandbox.pipes import pipe

CHECKOUT_LIMIT = 600.0
GITCONFIG = """\
[user]
\tname = Atelier agent
\temail = agent@atelier.invalid
[init]
\tdefaultBranch = main
[safe]
\tdirectory = *
[gc]
\tauto = 0
[advice]
\tdetachedHead = false
"""

Run = Callable[[list[str], bytes | int], Awaitable[tuple[Exec, Outcome]]]


class CheckoutFailed(Exception):
    """The repository could not be handed over, or checked out."""


async def check_out(source: SourceConfig, git: str, run: Run) -> None:
    """Make the checkout in the (empty) working directory. Raises `CheckoutFailed`."""
    await _git(run, ["init", "-q", "-b", source.branch, "."])
    if not source.commit:
        return
    await _hand_over(source, git, run)
    await _git(run, ["update-ref", f"refs/heads/{source.branch}", source.commit])
    await _git(run, ["reset", "-q", "--hard"])


async def _hand_over(source: SourceConfig, git: str, run: Run) -> None:
    """Stream the commit's history, and nothing else of the repository, from git on the host to git inside."""
    shallow = Path(source.repository) / "shallow"
    if shallow.exists():
        await _run(run, ["tee", ".git/shallow"], shallow.read_bytes())
    with contextlib.ExitStack() as ends:
        read, write = pipe(ends)
        packer = _pack(source, git, write.fd)
        write.close()
        refused: CheckoutFailed | None = None
        try:
            await _git(run, ["index-pack", "--stdin"], read.fd)
        except CheckoutFailed as error:
            refused = error
        finally:
            read.close()
            problem = await _end(packer)
    # What went wrong on the host explains what then went wrong inside, unless it only lost its reader.
    if problem and packer.returncode != -signal.SIGPIPE:
        raise CheckoutFailed(f"commit {source.commit} cannot be read from the repository: {problem}")
    if refused is not None:
        raise refused


def _pack(source: SourceConfig, git: str, output: int) -> subprocess.Popen[bytes]:
    # Only the repository's own configuration is read, and nothing is fetched from elsewhere meanwhile.
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    argv = [git, "-c", "safe.directory=*", "-C", source.repository, "pack-objects", "--revs", "--stdout", "-q",
            "--delta-base-offset"]  # fmt: skip
    packer = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.PIPE, env=environment, start_new_session=True
    )
    assert packer.stdin is not None
    packer.stdin.write(f"{source.commit}\n".encode())
    packer.stdin.close()
    return packer


async def _end(packer: subprocess.Popen[bytes]) -> str:
    assert packer.stderr is not None
    with packer.stderr:
        try:
            async with asyncio.timeout(CHECKOUT_LIMIT):
                text = await asyncio.to_thread(packer.stderr.read, 4096)
                code = await asyncio.to_thread(packer.wait)
        except TimeoutError:
            os.killpg(packer.pid, signal.SIGKILL)
            code, text = packer.wait(), b"it took too long"
    return text.decode(errors="replace").strip() or f"git ended with {code}" if code else ""


async def _git(run: Run, arguments: list[str], stdin: bytes | int = b"") -> None:
    await _run(run, ["git", *arguments], stdin)


async def _run(run: Run, argv: list[str], stdin: bytes | int) -> None:
    command, outcome = await run(argv, stdin)
    if outcome.exit_code != 0:
        text = command.output("stderr").decode(errors="replace").strip()
        raise CheckoutFailed(f"{' '.join(argv[:2])} failed in the sandbox: {outcome.reason or text}")
