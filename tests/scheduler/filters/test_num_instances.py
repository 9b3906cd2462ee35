from __future__ import annotations

from kilonova.scheduler import SchedulerConfig
from kilonova.scheduler.filters import load
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.filters.support import Said, describe, passing, said
from tests.scheduler.support import host, snapshot


def hosts() -> Hosts:
    found = snapshot(host(1), host(2), host(3, aggregates=frozenset({1, 2, 3})))
    found.settings = SchedulerConfig(max_instances_per_host=3)
    found.set_servers({("h1", "node1"): 2, ("h2", "node2"): 3, ("h3", "node3"): 2}, ["h1", "h2", "h3"])
    return found


def test_a_host_has_no_more_servers_than_it_may() -> None:
    assert passing("num_instances", hosts()) == {"h1", "h3"}
    words = Said("have no room for another server", "room for one more server", "3 servers of at most 3")
    assert said("num_instances", hosts(), 1) == words
    assert load(["num_instances"])[0].reads == ("servers",)


def test_the_least_that_an_aggregate_says_counts() -> None:
    key = "max_instances_per_host"
    found = describe(hosts(), {1: {key: "2"}, 2: {key: "9"}, 3: {key: "many"}})
    assert passing("num_instances", found) == {"h1"}
    assert said("num_instances", found, 2).have == "2 servers of at most 2"
