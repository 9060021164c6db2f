"""Framing of the two control sockets: a JSON object and a blob, each with its length. Standard library only."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

HEAD = struct.Struct("!II")
MAX_MESSAGE = 16 * 1024 * 1024
MAX_BLOB = 256 * 1024 * 1024

Message = dict[str, Any]


class FrameError(ConnectionError):
    """The peer sent something that is no frame."""


def pack(message: Message, blob: bytes = b"") -> tuple[bytes, bytes]:
    """Head and body of one frame."""
    body = json.dumps(message).encode()
    return HEAD.pack(len(body), len(blob)), body + blob


def unpack_head(head: bytes) -> tuple[int, int]:
    """Lengths of message and blob. Raises `FrameError` when one is too large."""
    body, blob = HEAD.unpack(head)
    if body > MAX_MESSAGE or blob > MAX_BLOB:
        raise FrameError(f"frame of {body} + {blob} bytes is too large")
    return body, blob


def parse(body: bytes) -> Message:
    """The JSON object of a frame. Raises `FrameError`."""
    try:
        message: Any = json.loads(body)
    except ValueError as error:
        raise FrameError(f"frame is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError("frame is no JSON object")
    return message  # pyright: ignore[reportUnknownVariableType]


async def read_frame(reader: asyncio.StreamReader) -> tuple[Message, bytes]:
    """Next frame. Raises `FrameError`, `asyncio.IncompleteReadError`, `ConnectionError`."""
    body, blob = unpack_head(await reader.readexactly(HEAD.size))
    return parse(await reader.readexactly(body)), await reader.readexactly(blob)


async def write_frame(writer: asyncio.StreamWriter, message: Message, blob: bytes = b"") -> None:
    """Send one frame and wait until the buffer has room again."""
    head, body = pack(message, blob)
    writer.write(head + body)
    await writer.drain()
