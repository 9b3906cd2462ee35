from __future__ import annotations

from kilonova.scheduler.request import GroupRule
from tests.scheduler.filters.support import Explanation, explain, is_idle, passing
from tests.scheduler.support import host, snapshot

HOSTS = snapshot(host(1), host(2), host(3))


def test_only_hosts_of_the_group_pass() -> None:
    group = GroupRule(id="g", policy="affinity", members={"h2": 3})
    assert passing("affinity", HOSTS, group=group) == {"h2"}
    assert explain("affinity", HOSTS, group=group) == Explanation(
        "without the servers of its affinity group", "h2", "h1"
    )


def test_first_server_of_a_group_is_not_restricted() -> None:
    assert is_idle("affinity", HOSTS)
    assert is_idle("affinity", HOSTS, group=GroupRule(id="g", policy="affinity"))


def test_other_policies_are_ignored() -> None:
    for policy in ("anti-affinity", "soft-affinity", "soft-anti-affinity"):
        assert is_idle("affinity", HOSTS, group=GroupRule(id="g", policy=policy, members={"h2": 1}))
