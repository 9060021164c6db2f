"""What a supervisor is told at its start, over its standard input. Standard library only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class SourceConfig:
    """The checkout: a trusted bare repository of the host's, a branch and its commit ("" for an unborn branch)."""

    repository: str = ""
    branch: str = "main"
    commit: str = ""


@dataclass(frozen=True)
class BoundsConfig:
    """Bounds of one workshop."""

    memory_mib: int = 4096
    processes: int = 512
    disk_mib: int = 8192
    cpu_seconds: int = 0


@dataclass(frozen=True)
class EgressConfig:
    """What the workshop may reach: hosts, ports, and private networks that the operator opens on purpose."""

    hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = (80, 443)
    networks: tuple[str, ...] = ()
    upstream_proxy: str = ""


@dataclass(frozen=True)
class UpstreamConfig:
    """The model endpoint; `api_key` is why this never goes into argv, the environment or a file."""

    base_url: str = ""
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True)
class SupervisorConfig:
    """Everything a supervisor needs."""

    directory: str
    bwrap: str
    """"" runs commands as plain processes (the user's explicit choice)."""
    python: str
    uid: int | None = None
    mounts: tuple[tuple[str, str], ...] = ()
    ca_bundle: str = ""
    git: str = "git"
    model_access: bool = False
    source: SourceConfig = field(default_factory=SourceConfig)
    bounds: BoundsConfig = field(default_factory=BoundsConfig)
    egress: EgressConfig = field(default_factory=EgressConfig)
    upstream: UpstreamConfig = field(default_factory=UpstreamConfig)

    def dump(self) -> bytes:
        """As JSON, for the supervisor's standard input."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, data: bytes) -> SupervisorConfig:
        """Inverse of `dump`."""
        values: dict[str, Any] = json.loads(data)
        egress: dict[str, Any] = values.pop("egress")
        lists = {name: tuple(egress.pop(name)) for name in ("hosts", "ports", "networks")}
        mounts: list[list[str]] = values.pop("mounts")
        return cls(
            source=SourceConfig(**values.pop("source")),
            bounds=BoundsConfig(**values.pop("bounds")),
            egress=EgressConfig(**lists, **egress),
            upstream=UpstreamConfig(**values.pop("upstream")),
            mounts=tuple((source, target) for source, target in mounts),
            **values,
        )
