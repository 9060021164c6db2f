"""What a launcher and a worker process say to each other over their private socket. No Dagster, no processes."""

from __future__ import annotations

import json
import os
import socket
import struct
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from atelier_dagster.factory.errors import Unavailable

_LENGTH = struct.Struct("!I")
_MAX_BYTES = 16 * 1024 * 1024


class ConversationEnded(Unavailable):
    """The other side closed the socket, or sent something that is no message."""

    code = "LAUNCH_CONVERSATION"


@dataclass(frozen=True)
class Order:
    """Everything that a process needs to become the worker of one run.

    `deadline` is on the machine's monotonic clock: after it the launcher has turned to other means, and a worker
    must not start. `not_before` is in seconds since the epoch: code loaded earlier is stale.
    """

    run_id: str
    directory: str
    cwd: str
    deadline: float
    not_before: float
    instance_ref: str = field(repr=False)
    environment: dict[str, str] = field(repr=False)


@dataclass(frozen=True)
class ZygoteConfig:
    """What a zygote is started with. `instance_ref` may hold secrets, so all of it travels over a pipe."""

    directory: str
    socket_name: str
    listener: int
    origin: str
    preload: tuple[str, ...]
    watch: tuple[str, ...]
    idle_seconds: float
    instance_ref: str = field(repr=False)


@dataclass(frozen=True)
class Reply:
    """A worker's answer: the `pid` that has taken the run, or why it has not.

    `refused` is about this order; `stale` asks for a new zygote; `never` says that one for this code is of no use.
    """

    pid: int = 0
    refused: str = ""
    stale: str = ""
    never: str = ""


def encode(message: Order | ZygoteConfig | Reply) -> bytes:
    """One message, preceded by its length."""
    body = json.dumps(asdict(message)).encode()
    return _LENGTH.pack(len(body)) + body


def send(conn: socket.socket, message: Order | Reply, fds: tuple[int, ...] = ()) -> None:
    """Send one message; `fds` become open files of the receiver."""
    data = encode(message)
    sent = socket.send_fds(conn, [data], list(fds)) if fds else 0
    conn.sendall(data[sent:])


def receive_order(conn: socket.socket) -> tuple[Order, list[int]]:
    """One order and the files that came with it. Raises `ConversationEnded`."""
    head, fds, _, _ = socket.recv_fds(conn, _LENGTH.size, 4)
    try:
        return Order(**_body(conn, head)), fds
    except (ConversationEnded, TypeError) as error:
        for fd in fds:
            os.close(fd)
        raise ConversationEnded(f"no order was received: {error}") from None


def receive_reply(conn: socket.socket) -> Reply:
    """One reply. Raises `ConversationEnded` when the worker died or did not answer in the socket's time limit."""
    try:
        return Reply(**_body(conn, _exactly(conn, _LENGTH.size)))
    except (OSError, TypeError) as error:
        raise ConversationEnded(f"no reply was received: {error}") from None


def read_config(data: bytes) -> ZygoteConfig:
    """The configuration that a zygote reads from its standard input."""
    values = cast("dict[str, Any]", json.loads(data[_LENGTH.size :]))
    for name in ("preload", "watch"):
        values[name] = tuple(values[name])
    return ZygoteConfig(**values)


def _body(conn: socket.socket, head: bytes) -> dict[str, Any]:
    if len(head) < _LENGTH.size:
        head += _exactly(conn, _LENGTH.size - len(head)) if head else b""
    if not head:
        raise ConversationEnded("the other side closed the socket")
    (length,) = _LENGTH.unpack(head)
    if length > _MAX_BYTES:
        raise ConversationEnded(f"a message of {length} bytes is longer than {_MAX_BYTES}")
    try:
        return cast("dict[str, Any]", json.loads(_exactly(conn, length)))
    except ValueError as error:
        raise ConversationEnded(f"not a message: {error}") from None


def _exactly(conn: socket.socket, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0:
        part = conn.recv(min(length, 1 << 16))
        if not part:
            raise ConversationEnded("the other side closed the socket")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
