from __future__ import annotations

from tests.scheduler.filters.support import Said, idle, passing, said
from tests.scheduler.support import host, snapshot


def test_every_hypervisor_of_an_excluded_host_is_excluded() -> None:
    hosts = snapshot(host(1), host(2), host(3), host(4, host="h3"))
    assert idle("excluded", hosts)
    assert passing("excluded", hosts, excluded_hosts=frozenset({"h1", "h9"})) == {"h2", "h3"}
    assert passing("excluded", hosts, excluded_hosts=frozenset({"h3"})) == {"h1", "h2"}
    assert said("excluded", hosts, excluded_hosts=frozenset({"h1"})) == Said("excluded", "any but h1", "h1")
