from __future__ import annotations

from tests.scheduler.filters.support import Explanation, explain, is_idle, passing
from tests.scheduler.support import host, snapshot


def test_pinned_zone_is_required() -> None:
    hosts = snapshot(host(1, zone="az1"), host(2, zone="az2"), host(3))
    assert is_idle("zone", hosts)
    assert passing("zone", hosts, zone="az1") == {"h1"}
    assert passing("zone", hosts, zone="nova") == {"h3"}
    assert passing("zone", hosts, zone="nowhere") == set()
    assert explain("zone", hosts, 1, zone="az1") == Explanation("not in zone az1", "az1", "az2")
