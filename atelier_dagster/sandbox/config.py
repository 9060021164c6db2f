"""What a supervisor is told at its start, over its standard input. Standard library only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


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
        values = json.loads(data)
        egress = {key: tuple(value) if isinstance(value, list) else value for key, value in values["egress"].items()}  # pyright: ignore[reportUnknownArgumentType]
        nested = {
            "source": SourceConfig(**values["source"]),
            "bounds": BoundsConfig(**values["bounds"]),
            "egress": EgressConfig(**egress),
            "upstream": UpstreamConfig(**values["upstream"]),
            "mounts": tuple((source, target) for source, target in values["mounts"]),
        }
        return cls(**{**values, **nested})
