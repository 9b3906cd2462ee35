from __future__ import annotations

from tests.scheduler.filters.support import Said, idle, passing, said
from tests.scheduler.support import host, snapshot


def test_only_where_the_named_servers_are() -> None:
    hosts = snapshot(host(1), host(2), host(3))
    assert idle("same_host", hosts)
    assert passing("same_host", hosts, same_hosts=frozenset({"h1", "h3"})) == {"h1", "h3"}
    assert passing("same_host", hosts, same_hosts=frozenset()) == set()  # the named servers are nowhere
    words = said("same_host", hosts, same_hosts=frozenset({"h3", "h2"}))
    assert words == Said("without a server of the hint same_host", "one of h2, h3", "h1")
