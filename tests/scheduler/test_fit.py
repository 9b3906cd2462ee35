"""`fit` counts as many servers as can be placed one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kilonova.placement.candidates.model import RequestGroup
from kilonova.scheduler import Request, SchedulerConfig
from kilonova.scheduler.dry_run import plan_dry_run
from kilonova.scheduler.fit import Fit, fit
from kilonova.scheduler.plan import Planner
from kilonova.scheduler.snapshot import Hosts, HostState
from tests.scheduler.support import TINY, amounts, cell, host, numa_host, pool, snapshot
from tests.support import run


def planner(**config: Any) -> Planner:
    return Planner(SchedulerConfig(**{"jitter": 0.0} | config))


def count_fit(hosts: Hosts, config: dict[str, Any] | None = None, **requested: Any) -> Fit:
    return fit(planner(**config or {}), hosts, Request(**{"resources": TINY} | requested))


def place_one_by_one(hosts: Hosts, config: dict[str, Any] | None = None, **requested: Any) -> int:
    """How many servers find a host when placed one after the other."""
    request = Request(**{"resources": TINY} | requested)
    plans = run(plan_dry_run(planner(**config or {}), hosts, lambda taken: request))
    return len(plans) - 1


def test_fit_of_single_provider_hosts_is_limited_by_scarcest_resource() -> None:
    hosts = snapshot(
        host(1), host(2, used={"VCPU": 6}), host(3, zone="az1", used={"DISK_GB": 97}), host(4, disabled=True)
    )
    found = count_fit(hosts, resources={"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 1})
    assert (found.servers, found.hosts) == (4 + 1 + 3, 3)
    assert found.zones == {"nova": 5, "az1": 3}
    assert found.runs_out == {"VCPU": 2, "DISK_GB": 1}
    assert [(one.host, one.servers, one.runs_out) for one in found.best] == [
        ("h1", 4, "VCPU"),
        ("h3", 3, "DISK_GB"),
        ("h2", 1, "VCPU"),
    ]
    assert found.best[2].free["VCPU"] == (2, 8)
    assert found.diagnosis.sentence() == "3 of 4 hosts fit: 1 disabled"


def test_fit_is_zero_without_capacity() -> None:
    found = count_fit(snapshot(host(1), host(2)), resources={"VCPU": 9})
    assert (found.servers, found.hosts, found.best, found.zones) == (0, 0, (), {})
    assert found.diagnosis.sentence() == "No valid host was found: 2 hosts: 2 lack 9 VCPU"


def test_fit_respects_max_unit_reserved_and_allocation_ratio() -> None:
    inventory = {"VCPU": amounts(8, max_unit=2, allocation_ratio=1.5), "MEMORY_MB": amounts(8192, reserved=192)}
    hosts = snapshot(host(1, inventory=inventory))
    requested = {"VCPU": 2, "MEMORY_MB": 1000}
    assert count_fit(hosts, resources=requested).servers == place_one_by_one(hosts, resources=requested) == 6
    assert count_fit(hosts, resources={"VCPU": 3}).servers == 0


def test_fit_respects_num_instances_filter() -> None:
    config = {"filters": ("num_instances", "capacity")}
    hosts = snapshot(host(1), host(2, used={"VCPU": 7}))
    hosts.settings = SchedulerConfig(max_instances_per_host=5)
    hosts.loads.servers[hosts.row_of("uuid-1") or 0] = 2
    found = count_fit(hosts, config)
    assert found.servers == 3 + 1
    assert found.runs_out == {"num_instances": 1, "VCPU": 1}


def test_fit_fills_numa_cells_one_by_one() -> None:
    """Two cells with 4 VCPU and one with 3 take one server of 3 VCPU each. No server spans two cells."""
    hosts = snapshot(numa_host(1, cell(101, 1), cell(102, 1), cell(103, 1, vcpus=3)), host(2))
    requested = {"groups": {"1": RequestGroup(resources={"VCPU": 3})}, "resources": {}}
    found = count_fit(hosts, **requested)
    assert found.servers == place_one_by_one(hosts, **requested) == 3 + 2
    assert found.runs_out == {"VCPU": 2}
    isolated = {
        **requested,
        "groups": {"1": RequestGroup(resources={"VCPU": 1}), "2": RequestGroup(resources={"VCPU": 1})},
        "isolate": True,
    }
    # Five pairs would be possible, but the search uses small cells first.
    assert count_fit(hosts, **isolated).servers == place_one_by_one(hosts, **isolated) == 4


def test_fit_reports_hosts_that_cannot_allocate_groups() -> None:
    """Enough VCPU in total, but not in the cells that the groups need."""
    hosts = snapshot(numa_host(1, cell(101, 1, vcpus=3), cell(102, 1, vcpus=3)), host(2))
    requested = {
        "groups": {"1": RequestGroup(resources={"VCPU": 2}), "2": RequestGroup(resources={"VCPU": 2})},
        "isolate": True,
    }
    found = count_fit(hosts, resources={}, **requested)
    assert (found.servers, found.hosts) == (1, 1)
    assert found.runs_out == {"VCPU": 1}
    (result,) = [one for one in found.diagnosis.filters if one.filter == "arrangement"]
    assert (result.rejected, result.left) == (1, 1)
    assert found.diagnosis.sentence().startswith("1 of 2 hosts fits: 1 cannot allocate: ")
    pairs = {
        "groups": {"1": RequestGroup(resources={"VCPU": 1}), "2": RequestGroup(resources={"VCPU": 1})},
        "resources": {},
    }
    assert count_fit(snapshot(numa_host(1, cell(101, 1, vcpus=3))), **pairs).runs_out == {"VCPU": 1}


def test_fit_counts_very_large_inventories() -> None:
    hosts = snapshot(host(1, inventory={"VCPU": amounts(2**31, allocation_ratio=1000.0)}))
    found = count_fit(hosts, resources={"VCPU": 1})
    assert (found.servers, found.runs_out) == (2**31 * 1000, {"VCPU": 1})


def test_fit_counts_shared_pool_once() -> None:
    """Each of three hosts alone could take 8 servers, but the pool has disk for 10."""
    own = {"VCPU": amounts(8), "MEMORY_MB": amounts(8192)}
    hosts = snapshot(
        *(host(n, inventory=own, provider_aggregates=frozenset({"rack"}), zone=f"az{n}") for n in (1, 2, 3)),
        pool(50, 10, "rack"),
    )
    found = count_fit(hosts)
    assert found.servers == place_one_by_one(hosts) == 10
    assert [(one.servers, one.shared) for one in found.best] == [(8, True)] * 3
    assert found.zones == {"az1": 8, "az2": 8, "az3": 8}


@pytest.mark.parametrize("seed", range(20))
def test_fit_equals_placing_servers_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    facts: list[Any] = [_host(chance, number) for number in range(1, 6)]
    if chance.random() < 0.5:
        facts.append(pool(50, chance.randrange(30), "rack"))
    hosts = snapshot(*facts)
    requested = {
        "VCPU": chance.randrange(1, 4),
        "MEMORY_MB": 512 * chance.randrange(1, 4),
        "DISK_GB": chance.randrange(3),
    }
    before = [hosts.inventory(name).free.tolist() for name in requested]
    assert count_fit(hosts, resources=requested).servers == place_one_by_one(hosts, resources=requested)
    assert [hosts.inventory(name).free.tolist() for name in requested] == before, "fit changes the columns"


def _host(chance: random.Random, number: int) -> HostState:
    used = {"VCPU": chance.randrange(8), "MEMORY_MB": chance.randrange(8192)}
    if chance.random() < 0.4:
        return numa_host(number, cell(100 * number, number, used={"VCPU": chance.randrange(4)}), disk=10)
    return host(number, used=used, provider_aggregates=frozenset({"rack"} if chance.random() < 0.5 else ()))


def test_fit_of_ten_thousand_hosts() -> None:
    hosts = snapshot(
        *(host(n, used={"VCPU": n % 8}) for n in range(1, 8001)),
        *(numa_host(n, cell(10 * n, n), cell(10 * n + 1, n)) for n in range(8001, 10001)),
    )
    assert count_fit(hosts).hosts == 10_000
