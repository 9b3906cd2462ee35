from __future__ import annotations

from kilonova.scheduler import SchedulerConfig
from kilonova.scheduler.filters import load
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.filters.support import Explanation, explain, is_idle, passing, set_metadata
from tests.scheduler.support import host, snapshot


def hosts() -> Hosts:
    found = snapshot(host(1), host(2), host(3, aggregates=frozenset({1})))
    found.settings = SchedulerConfig(max_io_ops_per_host=2)
    found.loads.operations = {"h1": 1, "h2": 2, "h3": 1}
    return found


def test_host_at_the_limit_is_rejected() -> None:
    assert passing("io_ops", hosts()) == {"h1", "h3"}
    assert explain("io_ops", hosts(), 1) == Explanation(
        "have too many operations running", "room for one more operation", "2 running"
    )
    assert load(["io_ops"])[0].reads == ("operations",)


def test_aggregate_overrides_limit() -> None:
    assert passing("io_ops", set_metadata(hosts(), {1: {"max_io_ops_per_host": "1"}})) == {"h1"}


def test_idle_hosts_are_not_checked() -> None:
    assert is_idle("io_ops", snapshot(host(1)))
