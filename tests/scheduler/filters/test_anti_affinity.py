from __future__ import annotations

from kilonova.scheduler.request import GroupRule
from tests.scheduler.filters.support import Explanation, explain, is_idle, passing
from tests.scheduler.support import host, snapshot

HOSTS = snapshot(host(1), host(2), host(3))


def test_hosts_of_the_group_are_rejected() -> None:
    group = GroupRule(id="g", policy="anti-affinity", members={"h1": 1, "h9": 1})
    assert passing("anti_affinity", HOSTS, group=group) == {"h2", "h3"}
    explanation = Explanation("have a server of its anti-affinity group", "fewer than 1 of the group", "1 of the group")
    assert explain("anti_affinity", HOSTS, group=group) == explanation


def test_max_per_host_allows_more_servers() -> None:
    group = GroupRule(id="g", policy="anti-affinity", max_per_host=2, members={"h1": 1, "h2": 2})
    assert passing("anti_affinity", HOSTS, group=group) == {"h1", "h3"}
    assert explain("anti_affinity", HOSTS, 1, group=group).text == "have 2 servers of its anti-affinity group"


def test_other_policies_are_ignored() -> None:
    assert is_idle("anti_affinity", HOSTS)
    for policy in ("affinity", "soft-affinity", "soft-anti-affinity"):
        assert is_idle("anti_affinity", HOSTS, group=GroupRule(id="g", policy=policy, members={"h2": 1}))
