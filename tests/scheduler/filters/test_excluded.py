from __future__ import annotations

from tests.scheduler.filters.support import Explanation, explain, is_idle, passing
from tests.scheduler.support import host, snapshot


def test_every_hypervisor_of_an_excluded_host_is_excluded() -> None:
    hosts = snapshot(host(1), host(2), host(3), host(4, host="h3"))
    assert is_idle("excluded", hosts)
    assert passing("excluded", hosts, excluded_hosts=frozenset({"h1", "h9"})) == {"h2", "h3"}
    assert passing("excluded", hosts, excluded_hosts=frozenset({"h3"})) == {"h1", "h2"}
    assert explain("excluded", hosts, excluded_hosts=frozenset({"h1"})) == Explanation("excluded", "any but h1", "h1")
