"""The artifact envelope and what counts as current. Not here: where artifacts are kept."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T", bound=BaseModel)


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spare white space: the same value always gives the same bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_hex(data: bytes) -> str:
    """Lower-case hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


class Artifact(BaseModel, Generic[T]):
    """One decision, with exactly what it was made from.

    The hash covers decisions and content, never durations, tokens, cost or times: those are metadata.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    asset: str
    ticket: str
    """Partition key."""
    cycle: int = Field(ge=1)
    round: int = Field(default=1, ge=1)
    attempt: int = Field(default=1, ge=1)
    inputs: dict[str, str] = Field(default_factory=dict)
    """Upstream asset -> sha256 of the artifact that was read. These decide about currency."""
    feedback: dict[str, str] = Field(default_factory=dict)
    """Asset -> sha256 of an earlier, refused artifact that this one answers. Recorded; no part of currency."""
    final: bool = False
    """Records an act that cannot be undone (a merge, an outcome): current for the rest of its cycle."""
    value: T

    def canonical(self) -> bytes:
        """The bytes that are stored and hashed."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def sha256(self) -> str:
        """Hash of `canonical()`: the artifact's name and Dagster data version."""
        return sha256_hex(self.canonical())
