from __future__ import annotations

from kilonova.scheduler.request import GroupRule
from tests.scheduler.filters.support import Said, idle, passing, said
from tests.scheduler.support import host, snapshot

HOSTS = snapshot(host(1), host(2), host(3))


def test_a_group_stays_together() -> None:
    group = GroupRule(id="g", policy="affinity", members={"h2": 3})
    assert passing("affinity", HOSTS, group=group) == {"h2"}
    assert said("affinity", HOSTS, group=group) == Said("without the servers of its affinity group", "h2", "h1")


def test_the_first_server_of_a_group_goes_anywhere() -> None:
    assert idle("affinity", HOSTS)
    assert idle("affinity", HOSTS, group=GroupRule(id="g", policy="affinity"))


def test_other_policies_are_no_matter() -> None:
    for policy in ("anti-affinity", "soft-affinity", "soft-anti-affinity"):
        assert idle("affinity", HOSTS, group=GroupRule(id="g", policy=policy, members={"h2": 1}))
