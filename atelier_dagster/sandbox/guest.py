"""Process 1 of a sandbox: starts, reaps and stops commands, listens, reads and writes files.

Mounted into the sandbox as one file, so it imports the standard library only and nothing of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
from typing import Any, NoReturn

HEAD = struct.Struct("!II")
STATUS = struct.Struct("!i")
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
CANNOT_EXECUTE, NOT_FOUND = 126, 127

Message = dict[str, Any]


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


# ------------------------------------------------------------------------------------------------ process trees


def descendants(root: int) -> list[int]:
    """Living processes below `root`, parents first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - the guest starts without pathlib
        if name.isdigit() and (parent := _parent(name)) is not None:
            children.setdefault(parent, []).append(int(name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def _parent(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except OSError:
        return None
    return None if state == b"Z" else int(parent)


def usage_below(root: int) -> tuple[int, int]:
    """Bytes of memory that belong to the processes below `root` alone (files and shared memory not counted), and
    how many processes they are.
    """
    found = descendants(root)
    return sum(_anonymous(pid) for pid in found), len(found)


def _anonymous(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123
            resident, shared = (int(field) for field in file.read().split()[1:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * resource.getpagesize()


def signal_tree(root: int, number: int, spare: frozenset[int] = frozenset()) -> set[int]:
    """Signal all below `root` until nobody new appears: a tree that forks faster than one walk is caught as well."""
    seen: set[int] = set()
    while new := set(descendants(root)) - seen - spare:
        for pid in new:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        seen |= new
    return seen


def kill_below(root: int) -> None:
    """Kill everything below `root`; stopped first, since what is stopped cannot fork."""
    for pid in signal_tree(root, signal.SIGSTOP):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def lower_limit(kind: int, value: int) -> None:
    """Set a limit of this process, or leave the one there is when it is lower."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


# ------------------------------------------------------------------------------------------------------- keeper


class Keeper:
    """Parent of one command, and subreaper of all that it starts: whoever outlives the command dies with it."""

    def __init__(self, request: Message, fds: list[int], report: int) -> None:
        self.request, self.fds, self.report = request, fds, report

    def run(self) -> NoReturn:
        """Run the command to its end, kill what it left behind, report its wait status."""
        watched = {signal.SIGCHLD, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.setsid()
        command = self._fork()
        for fd in self.fds:
            os.close(fd)
        status = self._wait(command, watched)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises when nothing was left behind
            kill_below(os.getpid())
            while True:
                pid, code = os.waitpid(-1, 0)
                status = code if pid == command else status
        os.write(self.report, STATUS.pack(status if status is not None else signal.SIGKILL))
        os._exit(0)

    def _wait(self, command: int, watched: set[signal.Signals]) -> int | None:
        while signal.sigwait(watched) == signal.SIGCHLD:
            with contextlib.suppress(ChildProcessError):
                while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
                    if found[0] == command:
                        return found[1]
        return None

    def _fork(self) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            self._become_command()
        except OSError as error:
            code = NOT_FOUND if error.errno in {errno.ENOENT, errno.ENOTDIR} else CANNOT_EXECUTE
            os.write(2, f"{error.filename or self.request['argv'][0]}: {error.strerror}\n".encode())
            os._exit(code)
        finally:
            os._exit(CANNOT_EXECUTE)

    def _become_command(self) -> NoReturn:
        for target, fd in enumerate(self.fds):
            os.dup2(fd, target)
        os.closerange(3, 1 << 20)
        os.setsid()
        os.umask(0o022)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.chdir(self.request["cwd"])
        for name, value in self.request["limits"].items():
            lower_limit(getattr(resource, name), value)
        os.execvpe(self.request["argv"][0], self.request["argv"], self.request["env"])  # noqa: S606


# -------------------------------------------------------------------------------------------------------- files


class FileRefused(Exception):
    """A path that is not served: `kind` is "not_found" or "invalid"."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


def _open_parent(base: str, path: str, *, make: bool) -> tuple[int, str]:
    """Open the directory that holds `path`, one component at a time and never through a link."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if not parts or ".." in parts or "\0" in path:
        raise FileRefused("invalid", f"{path!r} is not a path of a file")
    here = os.open(base, os.O_PATH | os.O_DIRECTORY)
    for part in parts[:-1]:
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=here)
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here, parts[-1]


def put_file(base: str, path: str, data: bytes) -> None:
    """Write a file whole or not at all; a link at its place is replaced, not followed."""
    parent, name = _open_parent(base, path, make=True)
    partial = f".{os.urandom(8).hex()}.partial"
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=parent)
        try:
            with open(fd, "wb") as file:  # noqa: PTH123
                file.write(data)
            os.rename(partial, name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            os.unlink(partial, dir_fd=parent)
            raise
    finally:
        os.close(parent)


def get_file(base: str, path: str, limit: int) -> bytes:
    """Content of a regular file of at most `limit` bytes."""
    parent, name = _open_parent("/" if path.startswith("/") else base, path, make=False)
    try:
        # Looked at before it is opened: opening a device can have effects, and a FIFO can hang.
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent)
        regular = stat.S_ISREG(os.fstat(found).st_mode)
        os.close(found)
        if not regular:
            raise FileRefused("invalid", f"{path!r} is not a regular file")
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
    finally:
        os.close(parent)
    with open(fd, "rb") as file:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FileRefused("invalid", f"{path!r} is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise FileRefused("invalid", f"{path!r} is larger than {limit} bytes")
    return data


# -------------------------------------------------------------------------------------------------------- guest


class Guest:
    """The loop of process 1: requests from the control socket, ends of commands, strays."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.keepers: dict[str, tuple[int, int]] = {}
        self.reports: dict[int, tuple[str, int]] = {}
        self.poll = select.poll()
        self.wake, wake_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, _wake_only)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        for fd in (control.fileno(), self.wake):
            self.poll.register(fd, select.POLLIN)

    def run(self) -> None:
        """Serve until the supervisor closes the control socket."""
        while True:
            for fd, _ in self.poll.poll():
                if fd == self.control.fileno():
                    if not self._request():
                        return
                elif fd == self.wake:
                    os.read(self.wake, 512)
                elif fd in self.reports:
                    self._command_ended(fd)
            self._reap()

    def send(self, message: Message, blob: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """One frame to the supervisor; file descriptors travel with its head."""
        body = json.dumps(message).encode()
        head = HEAD.pack(len(body), len(blob))
        if fds:
            socket.send_fds(self.control, [head], fds)
        else:
            self.control.sendall(head)
        self.control.sendall(body + blob)

    def _request(self) -> bool:
        head, fds, _, _ = socket.recv_fds(self.control, HEAD.size, 8, socket.MSG_CMSG_CLOEXEC)
        if len(head) < HEAD.size:
            return False
        size, blob_size = HEAD.unpack(head)
        message: Message = json.loads(self._exactly(size))
        blob = self._exactly(blob_size)
        try:
            reply, data, out = self._serve(message, blob, fds)
        except FileRefused as error:
            reply, data, out = {"error": error.kind, "detail": str(error)}, b"", ()
        except OSError as error:
            reply, data, out = {"error": _kind(error), "detail": str(error)}, b"", ()
        finally:
            for fd in fds:
                os.close(fd)
        self.send({"id": message["id"], **reply}, data, out)
        for fd in out:
            os.close(fd)
        return True

    def _serve(self, message: Message, blob: bytes, fds: list[int]) -> tuple[Message, bytes, tuple[int, ...]]:
        match message["op"]:
            case "spawn":
                return {"pid": self._spawn(message, fds)}, b"", ()
            case "kill":
                self._kill(message["exec"], hard=message["hard"])
            case "freeze":
                spare = frozenset(pid for pid, _ in self.keepers.values())
                signal_tree(os.getpid(), signal.SIGSTOP, spare)
            case "thaw":
                signal_tree(os.getpid(), signal.SIGCONT)
            case "put":
                put_file(message["base"], message["path"], blob)
            case "get":
                return {}, get_file(message["base"], message["path"], message["limit"]), ()
            case "listen":
                listener = socket.create_server(("127.0.0.1", message["port"]), backlog=128)
                return {"port": listener.getsockname()[1]}, b"", (listener.detach(),)
            case "usage":
                return {"usage": {key: usage_below(pid) for key, (pid, _) in self.keepers.items()}}, b"", ()
            case operation:
                return {"error": "invalid", "detail": f"no operation {operation!r}"}, b"", ()
        return {}, b"", ()

    def _spawn(self, message: Message, fds: list[int]) -> int:
        report, report_in = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                self.control.close()
                Keeper(message, fds, report_in).run()
            finally:
                os._exit(1)
        os.close(report_in)
        self.keepers[message["exec"]] = (pid, report)
        self.reports[report] = (message["exec"], pid)
        self.poll.register(report, select.POLLIN)
        return pid

    def _kill(self, key: str, *, hard: bool) -> None:
        if key not in self.keepers:
            return
        pid = self.keepers[key][0]
        with contextlib.suppress(ProcessLookupError):
            if hard:
                kill_below(pid)
                os.kill(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)

    def _command_ended(self, report: int) -> None:
        key, _ = self.reports.pop(report)
        self.keepers.pop(key)
        self.poll.unregister(report)
        status = os.read(report, STATUS.size)
        os.close(report)
        known = len(status) == STATUS.size
        self.send({"event": "exit", "exec": key, "status": STATUS.unpack(status)[0] if known else None})

    def _reap(self) -> None:
        """Reap the dead, and kill who was re-parented to us because its keeper was killed."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        mine = {pid for pid, _ in self.keepers.values()}
        for pid in _children():
            if pid not in mine:
                kill_below(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            part = self.control.recv(min(size, 1 << 20))
            if not part:
                raise SystemExit(0)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _wake_only(_number: int, _frame: object) -> None:
    """The wake-up descriptor does the work; a handler must exist for it to be written to."""


def _children() -> list[int]:
    me = str(os.getpid())
    try:
        with open(f"/proc/{me}/task/{me}/children", "rb") as file:  # noqa: PTH123
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [pid for pid in descendants(os.getpid()) if _parent(str(pid)) == os.getpid()]


def _kind(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "not_found"
    return "invalid" if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES} else "io"


def main() -> None:
    """Serve on the socket whose descriptor is the first argument."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write("900")
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # Same user as the commands: without this they could trace us and answer in our name.
    prctl(PR_SET_DUMPABLE, 0)
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guest = Guest(control)
    try:
        guest.run()
    finally:
        kill_below(os.getpid())


if __name__ == "__main__":
    main()
