from __future__ import annotations

from kilonova.scheduler.request import GroupRule
from tests.scheduler.filters.support import Said, idle, passing, said
from tests.scheduler.support import host, snapshot

HOSTS = snapshot(host(1), host(2), host(3))


def test_a_group_stays_apart() -> None:
    group = GroupRule(id="g", policy="anti-affinity", members={"h1": 1, "h9": 1})
    assert passing("anti_affinity", HOSTS, group=group) == {"h2", "h3"}
    words = Said("have a server of its anti-affinity group", "fewer than 1 of the group", "1 of the group")
    assert said("anti_affinity", HOSTS, group=group) == words


def test_the_rule_of_a_group_may_allow_more_on_a_host() -> None:
    group = GroupRule(id="g", policy="anti-affinity", max_per_host=2, members={"h1": 1, "h2": 2})
    assert passing("anti_affinity", HOSTS, group=group) == {"h1", "h3"}
    assert said("anti_affinity", HOSTS, 1, group=group).text == "have 2 servers of its anti-affinity group"


def test_other_policies_are_no_matter() -> None:
    assert idle("anti_affinity", HOSTS)
    for policy in ("affinity", "soft-affinity", "soft-anti-affinity"):
        assert idle("anti_affinity", HOSTS, group=GroupRule(id="g", policy=policy, members={"h2": 1}))
