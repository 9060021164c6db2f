"""Runs git on the host: argv only, in an environment of our own, with limits. Not here: what to ask of git."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.gitio._errors import GitFailed, GitOutputTooLarge, GitTimedOut, classify
from atelier_dagster.gitio._names import EMPTY_TREE
from atelier_dagster.ports import GitRemote

_log = logging.getLogger(__name__)

_INHERITED = (
    "PATH", "TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
)  # fmt: skip
"""How to reach the network, and nothing else, comes from our own environment."""

_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    # Attributes that a change brings along (`-diff`, `merge=ours`, filters) must not shape what reviewers see.
    "attr.tree": EMPTY_TREE,
    "core.quotePath": "false",
    "core.pager": "cat",
    "core.sshCommand": "ssh -oBatchMode=yes",
    "core.askPass": "",
    "credential.helper": "",
    "credential.interactive": "false",
    "protocol.allow": "never",
    "protocol.https.allow": "always",
    "protocol.http.allow": "always",
    "protocol.ssh.allow": "always",
    "protocol.git.allow": "always",
    "protocol.file.allow": "always",
    "protocol.ext.allow": "never",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "push.recurseSubmodules": "no",
    "transfer.bundleURI": "false",
    "fetch.writeCommitGraph": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "push.gpgSign": "false",
    "log.showSignature": "false",
    "advice.detachedHead": "false",
    "diff.renameLimit": "1000",
    "merge.renameLimit": "1000",
    "merge.conflictStyle": "merge",
    "init.defaultBranch": "main",
}

_HELPER = (
    "!f() { test \"$1\" = get && printf 'username=%s\\npassword=%s\\n' "
    '"$ATELIER_GIT_USERNAME" "$ATELIER_GIT_PASSWORD"; }; f'
)
"""Constant text: the values reach it through the environment of this one command."""


@dataclass(frozen=True)
class Identity:
    """Who authors and commits."""

    name: str = "Atelier"
    email: str = "atelier@atelier.invalid"


@dataclass(frozen=True)
class Output:
    """What a git command left."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """Standard output without the final newline."""
        return self.stdout.decode("utf-8", "backslashreplace").rstrip("\n")


@dataclass(frozen=True)
class Git:
    """Git on the host, for repositories that no agent can write. `directory` is the bare repository's path."""

    directory: Path | None = None
    identity: Identity = field(default_factory=Identity)
    timeout: float = 120.0
    """Seconds for one command."""
    output_limit: int = 64_000_000
    """Bytes of standard output."""
    memory_limit: int = 0
    """Bytes of address space; 0: no bound."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """More of the environment, for every command."""

    async def run(
        self,
        *argv: str,
        stdin: bytes | Path = b"",
        env: Mapping[str, str] | None = None,
        remote: GitRemote | None = None,
        ok: Sequence[int] = (0,),
    ) -> Output:
        """Run `git <argv>`. Raises `GitFailed` or one of its siblings when the exit code is not in `ok`."""
        password = remote.password.get_secret_value() if remote and remote.password else ""
        full_env = _environment(self.directory, self.identity, remote, password) | dict(self.env) | dict(env or {})
        process = await _start(argv, full_env, stdin)
        if self.memory_limit:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_AS, (self.memory_limit, self.memory_limit))
        stdout, stderr = await self._finish(process, argv, stdin if isinstance(stdin, bytes) else b"")
        said = _redact(stderr.decode("utf-8", "replace"), password)
        code = process.returncode if process.returncode is not None else -1
        if code not in ok:
            raise classify(argv, code, said)
        return Output(code, stdout, said)

    async def _finish(
        self, process: asyncio.subprocess.Process, argv: tuple[str, ...], stdin: bytes
    ) -> tuple[bytes, bytes]:
        try:
            async with asyncio.timeout(self.timeout):
                _, stdout, stderr = await asyncio.gather(
                    _feed(process.stdin, stdin),
                    _read(process.stdout, self.output_limit, strict=True),
                    _read(process.stderr, 65_536, strict=False),
                )
                await process.wait()
        except TimeoutError:
            raise GitTimedOut(
                f"git {argv[0]} took longer than {self.timeout:g} s", fix="check the remote, or raise the time limit"
            ) from None
        except _TooLarge:
            raise GitOutputTooLarge(f"git {argv[0]} printed more than {self.output_limit} bytes") from None
        finally:
            await _end(process)
        return stdout, stderr


class _TooLarge(Exception):
    pass


def _environment(directory: Path | None, identity: Identity, remote: GitRemote | None, password: str) -> dict[str, str]:
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    env |= {
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_ADVICE": "0",
        "GIT_TEMPLATE_DIR": "",
        "GIT_AUTHOR_NAME": identity.name,
        "GIT_AUTHOR_EMAIL": identity.email,
        "GIT_COMMITTER_NAME": identity.name,
        "GIT_COMMITTER_EMAIL": identity.email,
    }
    if directory is not None:
        env["GIT_DIR"] = str(directory)
    config = dict(_CONFIG)
    if remote and password:
        username = remote.username or "atelier"
        if "\n" in username + password or "\0" in username + password:
            raise InvalidInput("the forge's user name or token has a line break in it", fix="correct the setting")
        # Bound to the remote's own host: a redirect elsewhere gets no credential.
        config[f"credential.{_origin(remote.url)}.helper"] = _HELPER
        env |= {"ATELIER_GIT_USERNAME": username, "ATELIER_GIT_PASSWORD": password}
    for number, (key, value) in enumerate(config.items()):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    env["GIT_CONFIG_COUNT"] = str(len(config))
    return env


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def _start(argv: tuple[str, ...], env: dict[str, str], stdin: bytes | Path) -> asyncio.subprocess.Process:
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(stdin.open("rb")) if isinstance(stdin, Path) else asyncio.subprocess.PIPE
        try:
            return await asyncio.create_subprocess_exec(
                "git", *argv, env=env, cwd="/", stdin=source, start_new_session=True,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except FileNotFoundError:
            raise GitFailed("git is not installed", fix="install git 2.38 or newer") from None
        except ValueError as error:  # a NUL in an argument
            raise InvalidInput(f"git {argv[0]} cannot be given such a name: {error}") from None


async def _feed(pipe: asyncio.StreamWriter | None, data: bytes) -> None:
    if pipe is None:
        return
    # Git may end without reading all of its input; its exit code then says why.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        pipe.write(data)
        await pipe.drain()
    pipe.close()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await pipe.wait_closed()


async def _read(pipe: asyncio.StreamReader | None, limit: int, *, strict: bool) -> bytes:
    assert pipe is not None
    parts: list[bytes] = []
    size = 0
    while chunk := await pipe.read(1 << 18):
        size += len(chunk)
        if size <= limit:
            parts.append(chunk)
        elif strict:
            raise _TooLarge
    return b"".join(parts)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Stop the whole process group of a command that has not ended by itself."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    await asyncio.shield(process.wait())


def _redact(text: str, password: str) -> str:
    return text.replace(password, "***") if password else text
