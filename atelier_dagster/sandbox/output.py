"""What is kept of a command's output: the head and the tail of each stream. No files, no processes."""

from __future__ import annotations


class BoundedOutput:
    """Keeps the first and last bytes of a stream, `limit` in all, and says how many were dropped between them."""

    def __init__(self, limit: int) -> None:
        self._room = max(limit // 2, 0)
        self._tail_limit = max(limit - self._room, 0)
        self._tail = bytearray()
        self._dropped = 0

    def feed(self, data: bytes) -> bytes:
        """Take a piece; the part of it that belongs to the head is returned, to be shown at once."""
        head = data[: self._room]
        self._room -= len(head)
        self._tail += data[len(head) :]
        # Trimmed in large steps: trimming at each piece would copy the tail each time.
        if len(self._tail) > 2 * self._tail_limit + 65536:
            self._trim()
        return head

    def finish(self) -> bytes:
        """What follows the head: a line that says what is missing, if anything is, and the tail."""
        self._trim()
        return self.marker + bytes(self._tail)

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess

    @property
    def marker(self) -> bytes:
        """The line in place of what was dropped; empty when nothing was."""
        return f"\n[... {self._dropped} bytes dropped ...]\n".encode() if self._dropped else b""

    @property
    def truncated(self) -> bool:
        """Whether anything was dropped (known after `finish`)."""
        return self._dropped > 0
