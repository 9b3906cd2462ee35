"""Each weigher alone, and multipliers of aggregates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kilonova.scheduler import Request, SchedulerConfig
from kilonova.scheduler.config import WEIGHTS
from kilonova.scheduler.machines import Machine
from kilonova.scheduler.plan import Planner
from kilonova.scheduler.request import GroupRule
from kilonova.scheduler.snapshot import Hosts
from kilonova.scheduler.weighers import load
from tests.scheduler.support import TINY, host, snapshot

OFF = dict.fromkeys(WEIGHTS, 0.0)


def weigh(name: str, hosts: Hosts, **asked: Any) -> list[float] | None:
    (weigher,) = load(OFF | {name: 1.0})
    found = weigher.weigh(Request(**{"resources": TINY} | asked), hosts, np.flatnonzero(hosts.everywhere))
    return None if found is None else found.tolist()


def order(hosts: Hosts, weights: dict[str, float], **asked: Any) -> list[str]:
    planner = Planner(SchedulerConfig(jitter=0.0, weights=weights))
    return [one.host for one in planner.plan(Request(**{"resources": TINY} | asked), hosts).candidates]


def test_what_is_free() -> None:
    hosts = snapshot(host(1, used={"VCPU": 3, "MEMORY_MB": 192, "DISK_GB": 40}), host(2))
    assert weigh("cpu", hosts) == [5, 8]
    assert weigh("ram", hosts) == [8000, 8192]
    assert weigh("disk", hosts) == [60, 100]


def test_operations_in_flight() -> None:
    hosts = snapshot(host(1), host(2), host(3))
    assert weigh("io_ops", hosts) is None
    hosts.loads.operations = {"h1": 2, "h3": 1, "h9": 7}
    assert weigh("io_ops", hosts) == [2, 0, 1]
    assert order(hosts, {}) == ["h2", "h3", "h1"]


def test_servers() -> None:
    hosts = snapshot(host(1), host(2))
    hosts.set_servers({("h1", "node1"): 5}, ["h1", "h2"])
    assert weigh("num_instances", hosts) == [5, 0]


def test_failed_builds_weigh_more_than_anything_until_one_succeeds() -> None:
    hosts = snapshot(host(1), host(2, used={"VCPU": 7}), host(3))
    assert weigh("build_failure", hosts) is None
    hosts.loads.built("h1", False)
    hosts.loads.built("h1", False)
    hosts.loads.built("h3", False)
    assert weigh("build_failure", hosts) == [-2, 0, -1]
    assert order(hosts, {}) == ["h2", "h3", "h1"]
    hosts.loads.built("h1", True)
    hosts.loads.built("h3", True)
    assert weigh("build_failure", hosts) is None


def test_newer_hypervisors() -> None:
    same = snapshot(host(1), host(2))
    assert weigh("hypervisor_version", same) is None
    hosts = snapshot(host(1, machine=Machine("QEMU", 6_000_000)), host(2, machine=Machine("QEMU", 9_000_000)))
    assert weigh("hypervisor_version", hosts) == [6_000_000, 9_000_000]


def test_soft_group_policies() -> None:
    hosts = snapshot(host(1), host(2), host(3))
    members = {"h1": 1, "h2": 3, "h9": 5}
    near = GroupRule(id="g", policy="soft-affinity", members=members)
    apart = GroupRule(id="g", policy="soft-anti-affinity", members=members)
    assert weigh("soft_affinity", hosts, group=near) == [1, 3, 0]
    assert weigh("soft_anti_affinity", hosts, group=apart) == [-1, -3, 0]
    for group in (None, GroupRule(id="g", policy="affinity", members=members)):
        assert weigh("soft_affinity", hosts, group=group) is None
        assert weigh("soft_anti_affinity", hosts, group=group) is None
    assert order(hosts, {}, group=near) == ["h2", "h1", "h3"]
    assert order(hosts, {}, group=apart) == ["h3", "h1", "h2"]


def test_an_aggregate_may_have_multipliers_of_its_own() -> None:
    """The hosts of the aggregate are filled up, those outside emptied; the least of several multipliers counts."""
    used = {"MEMORY_MB": 4096}
    inside = frozenset({1, 2, 3})
    hosts = snapshot(host(1, used=used), host(2), host(3, used=used, aggregates=inside), host(4, aggregates=inside))
    assert order(hosts, OFF | {"ram": 1.0})[:2] in (["h2", "h4"], ["h4", "h2"])
    key = "ram_weight_multiplier"
    hosts.aggregates.describe(1, {1: {key: "-1.5"}, 2: {key: "3"}, 3: {key: "heavy"}})
    assert order(hosts, OFF | {"ram": 1.0}) == ["h2", "h1", "h3", "h4"]
    planner = Planner(SchedulerConfig(jitter=0.0, weights=OFF | {"ram": 1.0}))
    weights = planner.plan(Request(resources=TINY), hosts).diagnosis.weights
    assert {weight.host: weight.parts["ram"] for weight in weights} == {"h1": 0.0, "h2": 1.0, "h3": 0.0, "h4": -1.5}


def test_only_other_multipliers_than_the_usual_need_to_be_given() -> None:
    usual = {weigher.name: weigher.multiplier for weigher in load({})}
    assert usual == {name: number for name, number in WEIGHTS.items() if number}
    given = {weigher.name: weigher.multiplier for weigher in load({"ram": -2.0, "cpu": 0, "num_instances": 1})}
    del usual["cpu"]
    assert given == usual | {"ram": -2.0, "num_instances": 1}
    with pytest.raises(ValueError, match="no scheduler weigher 'rams'"):
        load({"rams": 1.0})
