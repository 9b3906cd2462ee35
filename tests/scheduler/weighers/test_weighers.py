"""Weighers and their multipliers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kilonova.scheduler import Request, SchedulerConfig
from kilonova.scheduler.config import WEIGHTS
from kilonova.scheduler.hypervisor_columns import HypervisorKind
from kilonova.scheduler.plan import Planner
from kilonova.scheduler.request import GroupRule
from kilonova.scheduler.snapshot import Hosts
from kilonova.scheduler.weighers import load
from tests.scheduler.support import TINY, host, snapshot

ALL_DISABLED = dict.fromkeys(WEIGHTS, 0.0)


def weigh(name: str, hosts: Hosts, **requested: Any) -> list[float] | None:
    (weigher,) = load(ALL_DISABLED | {name: 1.0})
    found = weigher.weigh(Request(**{"resources": TINY} | requested), hosts, np.flatnonzero(hosts.everywhere))
    return None if found is None else found.tolist()


def order(hosts: Hosts, weights: dict[str, float], **requested: Any) -> list[str]:
    planner = Planner(SchedulerConfig(jitter=0.0, weights=weights))
    return [one.host for one in planner.plan(Request(**{"resources": TINY} | requested), hosts).candidates]


def test_cpu_ram_and_disk_weigh_free_amounts() -> None:
    hosts = snapshot(host(1, used={"VCPU": 3, "MEMORY_MB": 192, "DISK_GB": 40}), host(2))
    assert weigh("cpu", hosts) == [5, 8]
    assert weigh("ram", hosts) == [8000, 8192]
    assert weigh("disk", hosts) == [60, 100]


def test_io_ops_weighs_running_operations() -> None:
    hosts = snapshot(host(1), host(2), host(3))
    assert weigh("io_ops", hosts) is None
    hosts.loads.operations = {"h1": 2, "h3": 1, "h9": 7}
    assert weigh("io_ops", hosts) == [2, 0, 1]
    assert order(hosts, {}) == ["h2", "h3", "h1"]


def test_num_instances_weighs_number_of_servers() -> None:
    hosts = snapshot(host(1), host(2))
    hosts.set_server_counts({("h1", "node1"): 5}, ["h1", "h2"])
    assert weigh("num_instances", hosts) == [5, 0]


def test_build_failure_outweighs_others_until_a_build_succeeds() -> None:
    hosts = snapshot(host(1), host(2, used={"VCPU": 7}), host(3))
    assert weigh("build_failure", hosts) is None
    hosts.loads.record_build("h1", False)
    hosts.loads.record_build("h1", False)
    hosts.loads.record_build("h3", False)
    assert weigh("build_failure", hosts) == [-2, 0, -1]
    assert order(hosts, {}) == ["h2", "h3", "h1"]
    hosts.loads.record_build("h1", True)
    hosts.loads.record_build("h3", True)
    assert weigh("build_failure", hosts) is None


def test_hypervisor_version_weighs_version() -> None:
    same = snapshot(host(1), host(2))
    assert weigh("hypervisor_version", same) is None
    hosts = snapshot(
        host(1, hypervisor_kind=HypervisorKind("QEMU", 6_000_000)),
        host(2, hypervisor_kind=HypervisorKind("QEMU", 9_000_000)),
    )
    assert weigh("hypervisor_version", hosts) == [6_000_000, 9_000_000]


def test_soft_affinity_and_soft_anti_affinity_weigh_group_members() -> None:
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


def test_aggregate_metadata_overrides_multiplier() -> None:
    """Hosts of the aggregate are filled up, other hosts are not; the lowest of several multipliers counts."""
    used = {"MEMORY_MB": 4096}
    inside = frozenset({1, 2, 3})
    hosts = snapshot(host(1, used=used), host(2), host(3, used=used, aggregates=inside), host(4, aggregates=inside))
    assert order(hosts, ALL_DISABLED | {"ram": 1.0})[:2] in (["h2", "h4"], ["h4", "h2"])
    key = "ram_weight_multiplier"
    hosts.aggregates.set_metadata(1, {1: {key: "-1.5"}, 2: {key: "3"}, 3: {key: "heavy"}})
    assert order(hosts, ALL_DISABLED | {"ram": 1.0}) == ["h2", "h1", "h3", "h4"]
    planner = Planner(SchedulerConfig(jitter=0.0, weights=ALL_DISABLED | {"ram": 1.0}))
    weights = planner.plan(Request(resources=TINY), hosts).diagnosis.weights
    assert {weight.host: weight.parts["ram"] for weight in weights} == {"h1": 0.0, "h2": 1.0, "h3": 0.0, "h4": -1.5}


def test_configured_weights_extend_default_multipliers() -> None:
    usual = {weigher.name: weigher.multiplier for weigher in load({})}
    assert usual == {name: number for name, number in WEIGHTS.items() if number}
    given = {weigher.name: weigher.multiplier for weigher in load({"ram": -2.0, "cpu": 0, "num_instances": 1})}
    del usual["cpu"]
    assert given == usual | {"ram": -2.0, "num_instances": 1}
    with pytest.raises(ValueError, match="no scheduler weigher 'rams'"):
        load({"rams": 1.0})
