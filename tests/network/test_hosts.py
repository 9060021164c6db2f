"""Decisions about hosts and addresses, as whole kinds."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier_dagster.network.hosts import (
    REGISTRIES,
    EgressPolicy,
    effective_address,
    is_public,
    normalized_host,
    valid_pattern,
)

POLICY = EgressPolicy(hosts=("exact.example", "*.wild.example"))


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("exact.example", True),
        ("sub.exact.example", False),
        ("notexact.example", False),
        ("exact.example.evil.example", False),
        ("a.wild.example", True),
        ("a.b.wild.example", True),
        ("wild.example", False),
        ("notwild.example", False),
        (".wild.example", False),
        ("a.wild.example.evil.example", False),
    ],
)
def test_hosts_match_exactly_or_below_a_domain(host: str, allowed: bool) -> None:
    assert (POLICY.refusal(host, 443) == "") is allowed


@pytest.mark.parametrize("port", [22, 25, 8080, 0, 65535])
def test_other_ports_are_refused(port: int) -> None:
    assert "port" in POLICY.refusal("exact.example", port)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
     "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::", "::1", "fe80::1", "fe80::1%eth0",
     "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
     "2002:7f00:1::", "2002:a00:1::", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2001:db8::1"],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert POLICY.address_refusal(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "151.101.0.223", "2a04:4e42::223", "::ffff:8.8.8.8"])
def test_public_addresses(address: str) -> None:
    assert POLICY.address_refusal(address) == ""


def test_a_private_network_can_be_opened_on_purpose() -> None:
    policy = EgressPolicy(networks=[ipaddress.ip_network("10.0.0.0/8")])
    assert policy.address_refusal("10.1.2.3") == ""
    assert policy.address_refusal("::ffff:10.1.2.3") == ""
    assert policy.address_refusal("192.168.0.1")


@given(st.ip_addresses(v=4))
def test_wrapping_an_address_never_makes_it_public(address: ipaddress.IPv4Address) -> None:
    assert effective_address(f"::ffff:{address}") == address
    wrapped = ipaddress.IPv6Address((0x64FF9B << 96) | int(address))
    assert is_public(effective_address(str(wrapped))) is is_public(address)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("A.Example", "a.example"), ("a.example.", "a.example"), ("[::1]", "::1"), ("127.0.0.1", "127.0.0.1"),
     ("a b", None), ("", None), ("-a.example", None), ("a..example", None), ("a" * 64, None), ("ü.example", None),
     ("a/b", None), ("a\0", None), ("a." * 130 + "a", None)],
)  # fmt: skip
def test_host_names(host: str, expected: str | None) -> None:
    assert normalized_host(host) == expected


@pytest.mark.parametrize("pattern", [*REGISTRIES, "*.example.com", "localhost", "127.0.0.1"])
def test_patterns(pattern: str) -> None:
    assert valid_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["*", "*.com", "A.example", "a.*", "*.*.example", "https://a.example", "a.example:1"]
)
def test_no_patterns(pattern: str) -> None:
    assert not valid_pattern(pattern)
