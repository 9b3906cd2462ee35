from __future__ import annotations

from kilonova.scheduler import SchedulerConfig
from kilonova.scheduler.filters import load
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.filters.support import Said, describe, idle, passing, said
from tests.scheduler.support import host, snapshot


def hosts() -> Hosts:
    found = snapshot(host(1), host(2), host(3, aggregates=frozenset({1})))
    found.settings = SchedulerConfig(max_io_ops_per_host=2)
    found.loads.operations = {"h1": 1, "h2": 2, "h3": 1}
    return found


def test_a_busy_host_is_left_alone() -> None:
    assert passing("io_ops", hosts()) == {"h1", "h3"}
    assert said("io_ops", hosts(), 1) == Said(
        "have too many operations running", "room for one more operation", "2 running"
    )
    assert load(["io_ops"])[0].reads == ("operations",)


def test_an_aggregate_may_say_how_many() -> None:
    assert passing("io_ops", describe(hosts(), {1: {"max_io_ops_per_host": "1"}})) == {"h1"}


def test_idle_hosts_need_no_check() -> None:
    assert idle("io_ops", snapshot(host(1)))
