"""How many more would fit is what placing them one by one comes to."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kilonova.placement.candidates.model import Group
from kilonova.scheduler import Request, SchedulerConfig
from kilonova.scheduler.fit import Fit, fit
from kilonova.scheduler.plan import Planner
from kilonova.scheduler.rehearsal import rehearse
from kilonova.scheduler.snapshot import HostFacts, Hosts
from tests.scheduler.support import TINY, amounts, cell, host, numa_host, pool, snapshot
from tests.support import run


def planner(**config: Any) -> Planner:
    return Planner(SchedulerConfig(**{"jitter": 0.0} | config))


def counted(hosts: Hosts, config: dict[str, Any] | None = None, **asked: Any) -> Fit:
    return fit(planner(**config or {}), hosts, Request(**{"resources": TINY} | asked))


def placed(hosts: Hosts, config: dict[str, Any] | None = None, **asked: Any) -> int:
    """How many find a host if they are placed one after the other."""
    request = Request(**{"resources": TINY} | asked)
    plans = run(rehearse(planner(**config or {}), hosts, lambda taken: request))
    return len(plans) - 1


def test_plain_hosts_are_counted_by_what_runs_out_first() -> None:
    hosts = snapshot(
        host(1), host(2, used={"VCPU": 6}), host(3, zone="az1", used={"DISK_GB": 97}), host(4, disabled=True)
    )
    found = counted(hosts, resources={"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 1})
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


def test_nothing_fits() -> None:
    found = counted(snapshot(host(1), host(2)), resources={"VCPU": 9})
    assert (found.servers, found.hosts, found.best, found.zones) == (0, 0, (), {})
    assert found.diagnosis.sentence() == "No valid host was found: 2 hosts: 2 lack 9 VCPU"


def test_units_and_ratios_count() -> None:
    inventory = {"VCPU": amounts(8, max_unit=2, allocation_ratio=1.5), "MEMORY_MB": amounts(8192, reserved=192)}
    hosts = snapshot(host(1, inventory=inventory))
    asked = {"VCPU": 2, "MEMORY_MB": 1000}
    assert counted(hosts, resources=asked).servers == placed(hosts, resources=asked) == 6
    assert counted(hosts, resources={"VCPU": 3}).servers == 0


def test_a_filter_that_counts_servers_runs_out_too() -> None:
    config = {"filters": ("num_instances", "capacity")}
    hosts = snapshot(host(1), host(2, used={"VCPU": 7}))
    hosts.settings = SchedulerConfig(max_instances_per_host=5)
    hosts.loads.servers[hosts.row_of("uuid-1") or 0] = 2
    found = counted(hosts, config)
    assert found.servers == 3 + 1
    assert found.runs_out == {"num_instances": 1, "VCPU": 1}


def test_cells_are_filled_one_by_one() -> None:
    """Two cells with 4 VCPU and one with 3 take one server of 3 each, and nobody spans two cells."""
    hosts = snapshot(numa_host(1, cell(101, 1), cell(102, 1), cell(103, 1, vcpus=3)), host(2))
    asked = {"groups": {"1": Group(resources={"VCPU": 3})}, "resources": {}}
    found = counted(hosts, **asked)
    assert found.servers == placed(hosts, **asked) == 3 + 2
    assert found.runs_out == {"VCPU": 2}
    isolated = {
        **asked,
        "groups": {"1": Group(resources={"VCPU": 1}), "2": Group(resources={"VCPU": 1})},
        "isolate": True,
    }
    # Five pairs of cells would be possible, but small cells are used up first.
    assert counted(hosts, **isolated).servers == placed(hosts, **isolated) == 4


def test_hosts_that_have_it_but_not_together_are_told_apart() -> None:
    """Six processors are there, four on no cell; and two groups of one class run out of it together."""
    hosts = snapshot(numa_host(1, cell(101, 1, vcpus=3), cell(102, 1, vcpus=3)), host(2))
    asked = {"groups": {"1": Group(resources={"VCPU": 2}), "2": Group(resources={"VCPU": 2})}, "isolate": True}
    found = counted(hosts, resources={}, **asked)
    assert (found.servers, found.hosts) == (1, 1)
    assert found.runs_out == {"VCPU": 1}
    (result,) = [one for one in found.diagnosis.filters if one.filter == "arrangement"]
    assert (result.rejected, result.left) == (1, 1)
    assert found.diagnosis.sentence().startswith("1 of 2 hosts fits: 1 cannot arrange: ")
    pairs = {"groups": {"1": Group(resources={"VCPU": 1}), "2": Group(resources={"VCPU": 1})}, "resources": {}}
    assert counted(snapshot(numa_host(1, cell(101, 1, vcpus=3))), **pairs).runs_out == {"VCPU": 1}


def test_there_is_no_end_of_room() -> None:
    hosts = snapshot(host(1, inventory={"VCPU": amounts(2**31, allocation_ratio=1000.0)}))
    found = counted(hosts, resources={"VCPU": 1})
    assert (found.servers, found.runs_out) == (2**31 * 1000, {"VCPU": 1})


def test_what_is_shared_is_counted_once() -> None:
    """Each of three hosts alone could take 8 servers with the disk of the pool, but the pool has disk for 10."""
    own = {"VCPU": amounts(8), "MEMORY_MB": amounts(8192)}
    hosts = snapshot(
        *(host(n, inventory=own, provider_aggregates=frozenset({"rack"}), zone=f"az{n}") for n in (1, 2, 3)),
        pool(50, 10, "rack"),
    )
    found = counted(hosts)
    assert found.servers == placed(hosts) == 10
    assert [(one.servers, one.shared) for one in found.best] == [(8, True)] * 3
    assert found.zones == {"az1": 8, "az2": 8, "az3": 8}


@pytest.mark.parametrize("seed", range(20))
def test_counting_is_placing_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    facts: list[Any] = [_host(chance, number) for number in range(1, 6)]
    if chance.random() < 0.5:
        facts.append(pool(50, chance.randrange(30), "rack"))
    hosts = snapshot(*facts)
    asked = {"VCPU": chance.randrange(1, 4), "MEMORY_MB": 512 * chance.randrange(1, 4), "DISK_GB": chance.randrange(3)}
    before = [hosts.stock(name).free.tolist() for name in asked]
    assert counted(hosts, resources=asked).servers == placed(hosts, resources=asked)
    assert [hosts.stock(name).free.tolist() for name in asked] == before, "counting leaves no trace"


def _host(chance: random.Random, number: int) -> HostFacts:
    used = {"VCPU": chance.randrange(8), "MEMORY_MB": chance.randrange(8192)}
    if chance.random() < 0.4:
        return numa_host(number, cell(100 * number, number, used={"VCPU": chance.randrange(4)}), disk=10)
    return host(number, used=used, provider_aggregates=frozenset({"rack"} if chance.random() < 0.5 else ()))


def test_ten_thousand_hosts_are_counted() -> None:
    hosts = snapshot(
        *(host(n, used={"VCPU": n % 8}) for n in range(1, 8001)),
        *(numa_host(n, cell(10 * n, n), cell(10 * n + 1, n)) for n in range(8001, 10001)),
    )
    assert counted(hosts).hosts == 10_000
