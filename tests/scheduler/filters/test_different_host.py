from __future__ import annotations

from tests.scheduler.filters.support import Explanation, explain, is_idle, passing
from tests.scheduler.support import host, snapshot


def test_hosts_of_the_named_servers_are_rejected() -> None:
    hosts = snapshot(host(1), host(2), host(3))
    assert is_idle("different_host", hosts)
    assert passing("different_host", hosts, different_hosts=frozenset({"h1", "h3", "h9"})) == {"h2"}
    explanation = explain("different_host", hosts, different_hosts=frozenset({"h1"}))
    assert explanation == Explanation("have a server of the hint different_host", "any but h1", "h1")
