from __future__ import annotations

import pytest

from tests.scheduler.filters.support import Explanation, explain, is_idle, passing
from tests.scheduler.support import host, snapshot

HOSTS = snapshot(
    host(1, address="192.0.2.10"),
    host(2, address="192.0.2.200"),
    host(3, address="192.0.3.10"),
    host(4, address="2001:db8::7"),
    host(5),
)


@pytest.mark.parametrize(
    "hints, expected",
    [
        ({"build_near_host_ip": "192.0.2.1"}, {"h1", "h2"}),
        ({"build_near_host_ip": "192.0.2.1", "cidr": "/25"}, {"h1"}),
        ({"build_near_host_ip": "192.0.2.1", "cidr": "16"}, {"h1", "h2", "h3"}),
        ({"build_near_host_ip": "192.0.2.1", "cidr": "/0"}, {"h1", "h2", "h3"}),
        ({"build_near_host_ip": "2001:db8::1", "cidr": "/64"}, {"h4"}),
        ({"build_near_host_ip": "next door"}, set()),
        ({"build_near_host_ip": "192.0.2.1", "cidr": "/wide"}, set()),
    ],
)
def test_hosts_in_the_network_pass(hints: dict[str, str], expected: set[str]) -> None:
    assert passing("cidr_affinity", HOSTS, hints=hints) == expected


def test_cidr_affinity_reason() -> None:
    assert is_idle("cidr_affinity", HOSTS, hints={"cidr": "/24"})
    explanation = explain("cidr_affinity", HOSTS, 2, hints={"build_near_host_ip": "192.0.2.1"})
    assert explanation == Explanation("not in network 192.0.2.1/24", "192.0.2.1/24", "192.0.3.10")
    assert explain("cidr_affinity", HOSTS, 4, hints={"build_near_host_ip": "192.0.2.1"}).have == "no address"
