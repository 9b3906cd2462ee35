from __future__ import annotations

from tests.scheduler.filters.support import Said, idle, passing, said
from tests.scheduler.support import host, snapshot


def test_not_where_the_named_servers_are() -> None:
    hosts = snapshot(host(1), host(2), host(3))
    assert idle("different_host", hosts)
    assert passing("different_host", hosts, different_hosts=frozenset({"h1", "h3", "h9"})) == {"h2"}
    words = said("different_host", hosts, different_hosts=frozenset({"h1"}))
    assert words == Said("have a server of the hint different_host", "any but h1", "h1")
