"""Which hosts and addresses may be reached. Pure decisions; no sockets."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

REGISTRIES = (
    "pypi.org", "files.pythonhosted.org",
    "registry.npmjs.org", "registry.yarnpkg.com", "nodejs.org",
    "crates.io", "index.crates.io", "static.crates.io", "static.rust-lang.org",
    "proxy.golang.org", "sum.golang.org", "go.dev", "dl.google.com",
    "repo.maven.apache.org", "repo1.maven.org", "plugins.gradle.org", "services.gradle.org",
    "rubygems.org", "index.rubygems.org", "repo.packagist.org", "packagist.org",
    "api.nuget.org", "hex.pm", "repo.hex.pm",
    "deb.debian.org", "security.debian.org", "archive.ubuntu.com", "security.ubuntu.com", "dl-cdn.alpinelinux.org",
)  # fmt: skip
"""Public package registries: what a build usually needs, and nothing that takes uploads from anyone unknown."""

_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def normalized_host(host: str) -> str | None:
    """Host name in lower case without a final dot, or an address without brackets; None when it is neither."""
    host = host.strip("[]").lower().removesuffix(".")
    if len(host) <= 253 and _HOST.fullmatch(host):
        return host
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def valid_pattern(pattern: str) -> bool:
    """Whether an allow-list entry has one of its two forms: a host, or `*.domain` with a domain of two labels."""
    if pattern.startswith("*."):
        return normalized_host(pattern[2:]) == pattern[2:] and "." in pattern[2:]
    return normalized_host(pattern) == pattern


@dataclass(frozen=True)
class EgressPolicy:
    """Hosts (exact, or `*.domain` for everything below it), ports, and private networks opened on purpose."""

    hosts: Sequence[str] = ()
    ports: Sequence[int] = (80, 443)
    networks: Sequence[Network] = ()

    def refusal(self, host: str, port: int) -> str:
        """Why a host and port may not be reached; "" when they may, as far as their names tell."""
        if port not in self.ports:
            return f"port {port} is not allowed"
        if not any(self._matches(pattern, host) for pattern in self.hosts):
            return "the host is not on the allow-list"
        return ""

    def address_refusal(self, address: str) -> str:
        """Why a resolved address may not be connected to; "" when it may."""
        ip = effective_address(address)
        if is_public(ip) or any(ip in network for network in self.networks if network.version == ip.version):
            return ""
        return f"the name resolves to {ip}, which is not a public address"

    @staticmethod
    def _matches(pattern: str, host: str) -> bool:
        if pattern.startswith("*."):
            return host.endswith(pattern[1:]) and len(host) > len(pattern) - 1
        return host == pattern


def effective_address(address: str) -> Address:
    """The address that a connection would really reach: IPv4 inside IPv6 is unwrapped."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return ip.ipv4_mapped
        if ip.sixtofour is not None:
            return ip.sixtofour
        if ip in _NAT64:
            return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip


def is_public(ip: Address) -> bool:
    """Whether an address belongs to the public internet (so no loopback, private, link-local, metadata, multicast)."""
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_link_local or ip.is_unspecified)
