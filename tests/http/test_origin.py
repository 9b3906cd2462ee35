"""The client's address, scheme and host, directly and behind proxies."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.http.origin import Origin, group_of, parse_proxies, request_origin

PROXIES = ["10.0.0.0/24", "fd00::1"]
FORWARDED = {
    "host": "backend:8774",
    "x-forwarded-for": "203.0.113.9",
    "x-forwarded-proto": "https",
    "x-forwarded-host": "cloud.example",
}


def origin(peer: str | None, headers: dict[str, str], proxies: list[str] = PROXIES, scheme: str = "http") -> Origin:
    scope: dict[str, Any] = {"scheme": scheme, "client": (peer, 4711) if peer else None}
    return request_origin(scope, headers, proxies)


def test_headers_of_trusted_proxy_are_used() -> None:
    for proxy in ("10.0.0.7", "fd00::1", "::ffff:10.0.0.7"):
        assert origin(proxy, FORWARDED) == Origin("203.0.113.9", "https", "cloud.example")


@pytest.mark.parametrize("peer", ["10.0.1.7", "fd00::2", "203.0.113.9", None])
def test_headers_of_others_are_ignored(peer: str | None) -> None:
    assert origin(peer, FORWARDED) == Origin(peer or "", "http", "backend:8774")
    assert origin(peer, FORWARDED, []) == Origin(peer or "", "http", "backend:8774")


def test_proxy_that_is_not_configured_is_not_trusted() -> None:
    assert origin("10.0.0.7", FORWARDED, []) == Origin("10.0.0.7", "http", "backend:8774")


@pytest.mark.parametrize(
    "forwarded_for, address",
    [
        ("1.2.3.4, 203.0.113.9", "203.0.113.9"),  # the first one is the client's own claim
        ("1.2.3.4, 203.0.113.9, 10.0.0.8", "203.0.113.9"),  # two proxies of the list
        ("10.0.0.5, 10.0.0.8", "10.0.0.5"),
        ("203.0.113.9:5000", "203.0.113.9"),
        ("[2001:db8::1]:5000", "2001:db8::1"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("203.0.113.9, unknown", "10.0.0.7"),
        ("", "10.0.0.7"),
    ],
)
def test_address_is_the_last_one_that_is_no_proxy(forwarded_for: str, address: str) -> None:
    assert origin("10.0.0.7", {**FORWARDED, "x-forwarded-for": forwarded_for}).address == address


def test_nearest_proxy_decides_scheme_and_host() -> None:
    headers = {**FORWARDED, "x-forwarded-proto": "http, https", "x-forwarded-host": "evil.example,cloud.example:8443"}
    assert origin("10.0.0.7", headers)[1:] == ("https", "cloud.example:8443")


@pytest.mark.parametrize("host", ["a b", '"><script>', "x" * 300, "a/b", "a@b", "\xff"])
def test_malformed_values_are_ignored(host: str) -> None:
    headers = {**FORWARDED, "x-forwarded-proto": "javascript", "x-forwarded-host": host}
    assert origin("10.0.0.7", headers, scheme="https")[1:] == ("https", "backend:8774")


def test_websockets_have_http_schemes() -> None:
    assert origin("203.0.113.9", {}, scheme="wss").scheme == "https"
    assert origin("203.0.113.9", {}, scheme="ws").scheme == "http"


def test_malformed_proxies_are_refused() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.1/8 has host bits set"):
        parse_proxies(("10.0.0.1/8",))


def test_addresses_of_an_ipv6_network_are_one_client() -> None:
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff:1")
    assert group_of("2001:db8::1") != group_of("2001:db8:0:1::1")
    assert group_of("::ffff:10.0.0.1") == group_of("10.0.0.1") == "10.0.0.1"
    assert group_of("fe80::1%eth0") == group_of("fe80::2%eth1")
