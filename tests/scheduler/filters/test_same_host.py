from __future__ import annotations

from tests.scheduler.filters.support import Explanation, explain, is_idle, passing
from tests.scheduler.support import host, snapshot


def test_only_hosts_of_the_named_servers_pass() -> None:
    hosts = snapshot(host(1), host(2), host(3))
    assert is_idle("same_host", hosts)
    assert passing("same_host", hosts, same_hosts=frozenset({"h1", "h3"})) == {"h1", "h3"}
    assert passing("same_host", hosts, same_hosts=frozenset()) == set()  # the named servers have no host
    explanation = explain("same_host", hosts, same_hosts=frozenset({"h3", "h2"}))
    assert explanation == Explanation("without a server of the hint same_host", "one of h2, h3", "h1")
