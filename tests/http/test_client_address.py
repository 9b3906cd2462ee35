"""The client's address, with and without proxies."""

from __future__ import annotations

import pytest

from kilonova.http.client_address import client_address, group_of, parse_networks


@pytest.mark.parametrize(
    "peer, forwarded, trusted, expected",
    [
        ("10.0.0.1", None, [], "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4", [], "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4", ["10.0.0.2"], "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4", ["10.0.0.1"], "1.2.3.4"),
        ("10.0.0.1", None, ["10.0.0.1"], "10.0.0.1"),
        # The client has sent the first address itself.
        ("10.0.0.1", "9.9.9.9, 1.2.3.4", ["10.0.0.0/24"], "1.2.3.4"),
        ("10.0.0.1", "1.2.3.4, 10.0.0.2", ["10.0.0.0/24"], "1.2.3.4"),
        ("10.0.0.1", "nonsense", ["10.0.0.1"], "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4, nonsense", ["10.0.0.1"], "10.0.0.1"),
        ("10.0.0.1", "", ["10.0.0.1"], "10.0.0.1"),
        ("::ffff:10.0.0.1", "2001:DB8::1", ["10.0.0.1"], "2001:db8::1"),
    ],
)
def test_address_behind_proxies(peer: str, forwarded: str | None, trusted: list[str], expected: str) -> None:
    headers = {} if forwarded is None else {"x-forwarded-for": forwarded}
    assert client_address({"client": (peer, 4711)}, headers, parse_networks(trusted)) == expected


def test_requests_of_the_process_have_no_address() -> None:
    assert client_address({}, {"x-forwarded-for": "1.2.3.4"}, parse_networks(["0.0.0.0/0"])) is None


def test_addresses_of_an_ipv6_network_are_one_client() -> None:
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff:1")
    assert group_of("2001:db8::1") != group_of("2001:db8:0:1::1")
    assert group_of("::ffff:10.0.0.1") == group_of("10.0.0.1") == "10.0.0.1"
    assert group_of("fe80::1%eth0") == group_of("fe80::2%eth1")
