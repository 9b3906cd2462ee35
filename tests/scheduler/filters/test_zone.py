from __future__ import annotations

from tests.scheduler.filters.support import Said, idle, passing, said
from tests.scheduler.support import host, snapshot


def test_a_pin_is_kept() -> None:
    hosts = snapshot(host(1, zone="az1"), host(2, zone="az2"), host(3))
    assert idle("zone", hosts)
    assert passing("zone", hosts, zone="az1") == {"h1"}
    assert passing("zone", hosts, zone="nova") == {"h3"}
    assert passing("zone", hosts, zone="nowhere") == set()
    assert said("zone", hosts, 1, zone="az1") == Said("not in zone az1", "az1", "az2")
