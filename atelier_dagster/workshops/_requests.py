"""What may be asked of a local workshop, and its form on the way to the supervisor and back."""

from __future__ import annotations

import re
from typing import Any

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.network.hosts import valid_pattern
from atelier_dagster.ports import ExecRequest, ExecResult, WorkshopSpec
from atelier_dagster.sandbox.frames import MAX_BLOB, Message

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
COMMIT = re.compile(r"|[0-9a-f]{40}|[0-9a-f]{64}")


def validate_name(name: str) -> None:
    """Raises `InvalidInput` unless it is a DNS label."""
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is no workshop name", fix="use a DNS label: a-z, 0-9 and -, at most 63 characters"
        )


def validate(spec: WorkshopSpec) -> None:
    """Raises `InvalidInput` for a spec that cannot be made."""
    validate_name(spec.name)
    if not COMMIT.fullmatch(spec.source.commit):
        raise InvalidInput(f"{spec.source.commit!r} is no full commit id")
    for pattern in spec.egress:
        if not valid_pattern(pattern):
            raise InvalidInput(f"{pattern!r} is no host", fix="name a host, or *.domain")


def validate_exec(request: ExecRequest) -> None:
    """Raises `InvalidInput` for what cannot be a command."""
    if not request.id or len(request.id) > 500:
        raise InvalidInput("a command needs an id of at most 500 characters")
    validate_size(request.stdin)
    texts = [*request.argv, *request.env, *request.env.values(), request.cwd]
    if not request.argv or any("\0" in text for text in texts) or any("=" in name for name in request.env):
        raise InvalidInput(f"command {request.id!r} has no argv, or a NUL or = where none can be")


def validate_size(data: bytes) -> None:
    """Raises `InvalidInput` for more than one frame can carry."""
    if len(data) > MAX_BLOB:
        raise InvalidInput(f"{len(data)} bytes are too many at once", fix=f"give at most {MAX_BLOB} bytes")


def exec_message(request: ExecRequest) -> Message:
    """The request as the supervisor takes it."""
    return {
        "op": "exec",
        "exec": request.id,
        "argv": list(request.argv),
        "env": dict(request.env),
        "cwd": request.cwd,
        "timeout": request.timeout,
        "output_limit": request.output_limit,
    }


def result(exec_id: str, outcome: dict[str, Any], streams: dict[str, bytearray]) -> ExecResult:
    """The supervisor's answer as the port gives it."""
    return ExecResult(
        id=exec_id,
        exit_code=outcome["exit_code"],
        stdout=bytes(streams["stdout"]),
        stderr=bytes(streams["stderr"]),
        timed_out=outcome["timed_out"],
        truncated=outcome["truncated"],
        duration=outcome["duration"],
        reason=outcome["reason"],
    )
