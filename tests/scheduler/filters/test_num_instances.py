from __future__ import annotations

from kilonova.scheduler import SchedulerConfig
from kilonova.scheduler.filters import load
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.filters.support import Explanation, explain, passing, set_metadata
from tests.scheduler.support import host, snapshot


def hosts() -> Hosts:
    found = snapshot(host(1), host(2), host(3, aggregates=frozenset({1, 2, 3})))
    found.settings = SchedulerConfig(max_instances_per_host=3)
    found.set_server_counts({("h1", "node1"): 2, ("h2", "node2"): 3, ("h3", "node3"): 2}, ["h1", "h2", "h3"])
    return found


def test_host_at_the_limit_is_rejected() -> None:
    assert passing("num_instances", hosts()) == {"h1", "h3"}
    explanation = Explanation("have no room for another server", "room for one more server", "3 servers of at most 3")
    assert explain("num_instances", hosts(), 1) == explanation
    assert load(["num_instances"])[0].reads == ("servers",)


def test_lowest_limit_of_aggregates_applies() -> None:
    key = "max_instances_per_host"
    found = set_metadata(hosts(), {1: {key: "2"}, 2: {key: "9"}, 3: {key: "many"}})
    assert passing("num_instances", found) == {"h1"}
    assert explain("num_instances", found, 2).have == "2 servers of at most 2"
