"""Provider trees and sharing providers: columns, plans, proposals and reasons."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kilonova.placement.candidates.model import RequestGroup
from kilonova.placement.host_providers import SHARING_TRAIT
from kilonova.scheduler import Plan, Request, SchedulerConfig
from kilonova.scheduler.plan import Planner
from kilonova.scheduler.provider_trees import ProviderVersion
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.support import TINY, amounts, cell, host, names, numa_host, pool, provider, snapshot

CPU = {"VCPU": 2, "MEMORY_MB": 1024}


def plan(hosts: Hosts, *, config: dict[str, Any] | None = None, **requested: Any) -> Plan:
    planner = Planner(SchedulerConfig(**{"jitter": 0.0} | (config or {})))
    return planner.plan(Request(**{"resources": TINY} | requested), hosts)


def taken(outcome: Plan) -> dict[str, dict[str, dict[str, int]]]:
    return {candidate.host: candidate.allocations for candidate in outcome.candidates}


def column(hosts: Hosts, name: str, resource_class: str, host_number: int) -> float:
    row = hosts.row_of(f"uuid-{host_number}")
    assert row is not None
    return float(getattr(hosts.inventory(resource_class), name)[row])


# Columns


def test_columns_of_tree_have_sum_and_largest_single_provider() -> None:
    hosts = snapshot(
        numa_host(1, cell(101, 1, used={"VCPU": 3}), cell(102, 1, vcpus=6, used={"VCPU": 1})),
        host(2),
    )
    assert column(hosts, "capacity", "VCPU", 1) == 10
    assert column(hosts, "used", "VCPU", 1) == 4
    assert column(hosts, "free", "VCPU", 1) == 6
    assert column(hosts, "max_allocation", "VCPU", 1) == 5
    assert column(hosts, "max_allocation", "DISK_GB", 1) == 100
    assert column(hosts, "max_allocation", "VCPU", 2) == 8
    hosts.set_used(102, {"VCPU": 6}, ProviderVersion(2, 1, 2))
    assert (column(hosts, "free", "VCPU", 1), column(hosts, "max_allocation", "VCPU", 1)) == (1, 1)
    hosts.set_used(102, {"VCPU": 0}, ProviderVersion(1, 1, 1))  # an older version
    assert column(hosts, "max_allocation", "VCPU", 1) == 1


def test_units_of_tree_admit_amounts_of_any_provider() -> None:
    coarse = {"DISK_GB": amounts(100, min_unit=20, step_size=10)}
    fine = {"DISK_GB": amounts(30, min_unit=5, step_size=5)}
    hosts = snapshot(
        host(1, inventory=coarse),
        host(2, inventory=coarse, children=(provider(102, "uuid-2", "uuid-2", inventory=fine),)),
    )
    assert list(taken(plan(hosts, resources={"DISK_GB": 15}))) == ["h2"]
    assert set(taken(plan(hosts, resources={"DISK_GB": 40}))) == {"h1", "h2"}
    assert taken(plan(hosts, resources={"DISK_GB": 7})) == {}


def test_shared_inventory_counts_only_for_hosts_in_its_aggregates() -> None:
    hosts = snapshot(
        pool(50, 500, "agg1"),
        host(1, provider_aggregates=frozenset({"agg1", "agg2"})),
        host(2, inventory={"VCPU": amounts(8), "MEMORY_MB": amounts(8192)}, provider_aggregates=frozenset({"agg1"})),
        host(3, provider_aggregates=frozenset({"agg2"})),
        numa_host(4, cell(104, 4, aggregates=frozenset({"agg1"})), disk=0),
    )
    rooms = [column(hosts, "max_allocation", "DISK_GB", number) for number in (1, 2, 3, 4)]
    assert rooms == [500, 500, 100, 500]
    assert [column(hosts, "free", "DISK_GB", number) for number in (1, 2, 3, 4)] == [600, 500, 100, 500]
    hosts.set_used(50, {"DISK_GB": 480}, ProviderVersion(2, 1, 2))
    assert [column(hosts, "max_allocation", "DISK_GB", number) for number in (1, 2, 3, 4)] == [100, 20, 100, 20]
    hosts.put_sharing_provider(pool(50, 500, "agg2", version=ProviderVersion(3, 3, 3)))  # moved to another aggregate
    assert [column(hosts, "max_allocation", "DISK_GB", number) for number in (1, 2, 3, 4)] == [500, 0, 500, 0]
    hosts.put_sharing_provider(pool(50, 500, "agg2", traits=frozenset(), version=ProviderVersion(4, 4, 4)))
    assert [column(hosts, "max_allocation", "DISK_GB", number) for number in (1, 2, 3, 4)] == [100, 0, 100, 0]
    hosts.put_sharing_provider(pool(50, 500, "agg2", version=ProviderVersion(5, 5, 5)))
    hosts.drop(50)
    assert [column(hosts, "max_allocation", "DISK_GB", number) for number in (1, 2, 3, 4)] == [100, 0, 100, 0]
    assert not hosts.sharing


def test_growing_columns_keep_trees_and_provider_sets() -> None:
    hosts = snapshot(pool(5000, 500, "agg"), numa_host(1, cell(6000, 1)))
    for number in range(2, 1000):
        hosts.put(host(number, provider_aggregates=frozenset({"agg"} if number % 2 else {"other"})))
    assert column(hosts, "max_allocation", "VCPU", 1) == 4
    assert (hosts.inventory("DISK_GB").max_allocation == 500).sum() == 499
    hosts.set_used(6000, {"VCPU": 4}, ProviderVersion(2, 1, 2))
    assert column(hosts, "max_allocation", "VCPU", 1) == 0


def test_host_gains_and_loses_its_provider_tree() -> None:
    hosts = snapshot(host(1), host(2))
    assert hosts.all_single_provider
    hosts.add_proposal("uuid-1", {"uuid-1": {"VCPU": 3}}, until=10)
    hosts.put(numa_host(1, cell(101, 1), cell(102, 1), traits=frozenset({"A"}), version=ProviderVersion(2, 2, 2)))
    assert not hosts.all_single_provider
    assert (column(hosts, "free", "VCPU", 1), column(hosts, "max_allocation", "VCPU", 1)) == (8, 4)
    hosts.add_proposal("uuid-1", {"uuid-101": {"VCPU": 3}}, until=10)
    assert (column(hosts, "free", "VCPU", 1), column(hosts, "proposed", "VCPU", 1)) == (5, 3)
    hosts.put(host(1, version=ProviderVersion(3, 3, 3)))
    assert hosts.all_single_provider
    assert hosts.version(101) is None
    assert (column(hosts, "free", "VCPU", 1), column(hosts, "proposed", "VCPU", 1)) == (8, 0)
    hosts.put(numa_host(1, cell(101, 1), version=ProviderVersion(4, 4, 4)))
    hosts.drop(1)
    assert hosts.all_single_provider
    assert names(hosts, hosts.everywhere) == {"h2"}


def test_missing_provider_leaves_tree_unless_a_later_read_found_it() -> None:
    hosts = snapshot(numa_host(1, cell(101, 1), cell(102, 1, vcpus=6), read_number=1))
    hosts.put(numa_host(1, cell(101, 1), read_number=2))
    assert column(hosts, "max_allocation", "VCPU", 1) == 4
    hosts.put(numa_host(1, cell(101, 1), cell(103, 1, vcpus=7), read_number=4))
    hosts.put(numa_host(1, cell(101, 1), read_number=3))  # an earlier read that is applied late
    assert column(hosts, "max_allocation", "VCPU", 1) == 7
    hosts.drop(103)
    assert column(hosts, "max_allocation", "VCPU", 1) == 4


def test_provider_moves_between_trees() -> None:
    hosts = snapshot(numa_host(1, cell(101, 1), cell(102, 1, vcpus=6)), numa_host(2, cell(201, 2)))
    hosts.put(
        numa_host(
            2, cell(201, 2), cell(102, 2, vcpus=6, version=ProviderVersion(2, 2, 2)), version=ProviderVersion(2, 2, 2)
        )
    )
    assert [column(hosts, "max_allocation", "VCPU", number) for number in (1, 2)] == [4, 6]


def test_sharing_host_does_not_count_its_own_inventory_twice() -> None:
    both = frozenset({"agg"})
    hosts = snapshot(
        host(1, traits=frozenset({SHARING_TRAIT}), provider_aggregates=both),
        host(2, inventory={"VCPU": amounts(8), "MEMORY_MB": amounts(8192)}, provider_aggregates=both),
    )
    assert [column(hosts, "free", "DISK_GB", number) for number in (1, 2)] == [100, 100]
    assert taken(plan(hosts)) == {
        "h1": {"uuid-1": TINY},
        "h2": {"uuid-2": {"VCPU": 1, "MEMORY_MB": 512}, "uuid-1": {"DISK_GB": 1}},
    }


# Traits


def test_has_trait_checks_any_provider_and_all_providers_have_trait_checks_all() -> None:
    some, every = frozenset({"SOME"}), frozenset({"EVERY"})
    hosts = snapshot(
        numa_host(1, cell(101, 1, traits=some | every), traits=every),
        host(2, traits=some),
        pool(50, 500, "agg", traits=frozenset({SHARING_TRAIT, "SSD"})),
        host(3, provider_aggregates=frozenset({"agg"}), traits=every),
    )
    assert names(hosts, hosts.has_trait("SOME")) == {"h1", "h2"}
    assert names(hosts, hosts.has_trait("SSD")) == {"h3"}
    assert names(hosts, hosts.all_providers_have_trait("SOME")) == {"h2"}
    assert names(hosts, hosts.all_providers_have_trait("EVERY")) == {"h1"}
    hosts.put(
        numa_host(1, cell(101, 1, traits=every, version=ProviderVersion(2, 2, 2)), version=ProviderVersion(2, 2, 2))
    )
    assert names(hosts, hosts.has_trait("SOME")) == {"h2"}
    assert names(hosts, hosts.all_providers_have_trait("EVERY")) == set()
    hosts.put(host(1, traits=some, version=ProviderVersion(3, 3, 3)))
    assert names(hosts, hosts.all_providers_have_trait("SOME")) == {"h1", "h2"}


def test_forbidden_trait_allows_providers_without_it() -> None:
    fast = frozenset({"CUSTOM_FAST"})
    hosts = snapshot(
        numa_host(1, cell(101, 1, traits=fast), cell(102, 1)),
        numa_host(2, cell(201, 2, traits=fast)),
        host(3, traits=fast),
        host(4),
    )
    outcome = plan(hosts, resources=CPU, forbidden_traits=fast)
    assert taken(outcome) == {"h4": {"uuid-4": CPU}, "h1": {"uuid-102": CPU}}
    assert [str(cause) for cause in outcome.diagnosis.causes] == [
        "1 has forbidden trait CUSTOM_FAST",
        "1 cannot allocate: no provider with 2 VCPU is without CUSTOM_FAST",
    ]


# Plans


def test_single_provider_hosts_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = snapshot(host(1), host(2, used={"VCPU": 8}))
    monkeypatch.setattr(Hosts, "providers_of", lambda *_: pytest.fail("searched the providers"))
    outcome = plan(hosts)
    assert taken(outcome) == {"h1": {"uuid-1": TINY}}
    assert outcome.diagnosis.filters[-1].filter == "capacity"


def test_allocations_combine_numa_cell_root_and_pool() -> None:
    hosts = snapshot(
        pool(50, 500, "agg"),
        numa_host(1, cell(101, 1, used={"VCPU": 3}), cell(102, 1), disk=0, provider_aggregates=frozenset({"agg"})),
        host(2),
    )
    outcome = plan(hosts, resources={**CPU, "DISK_GB": 10})
    assert taken(outcome) == {
        "h1": {"uuid-102": CPU, "uuid-50": {"DISK_GB": 10}},
        "h2": {"uuid-2": {**CPU, "DISK_GB": 10}},
    }
    assert outcome.diagnosis.left == 2


def test_small_servers_fill_fullest_cell_first() -> None:
    hosts = snapshot(numa_host(1, cell(101, 1), cell(102, 1, used={"VCPU": 1, "MEMORY_MB": 512})))
    assert taken(plan(hosts, resources=CPU)) == {"h1": {"uuid-102": CPU}}
    assert taken(plan(hosts, resources={"VCPU": 4, "MEMORY_MB": 512})) == {
        "h1": {"uuid-101": {"VCPU": 4, "MEMORY_MB": 512}}
    }


def test_allocations_prefer_a_single_cell() -> None:
    """The fullest cell for VCPU is not the fullest one for memory."""
    hosts = snapshot(
        numa_host(1, cell(101, 1, used={"VCPU": 2, "MEMORY_MB": 4000}), cell(102, 1)),
    )
    assert taken(plan(hosts, resources=CPU)) == {"h1": {"uuid-102": CPU}}


GROUPED = {
    "resources": {"DISK_GB": 5},
    "groups": {"1": RequestGroup(resources={"VCPU": 2}), "2": RequestGroup(resources={"VCPU": 2})},
}


def test_group_policy_isolate_uses_different_providers() -> None:
    hosts = snapshot(numa_host(1, cell(101, 1), cell(102, 1)), host(2))
    together = taken(plan(hosts, **GROUPED))
    assert together["h2"] == {"uuid-2": {"VCPU": 4, "DISK_GB": 5}}
    apart = plan(hosts, **GROUPED, isolate=True)
    assert taken(apart) == {"h1": {"uuid-1": {"DISK_GB": 5}, "uuid-101": {"VCPU": 2}, "uuid-102": {"VCPU": 2}}}
    assert [str(cause) for cause in apart.diagnosis.causes] == [
        "1 cannot allocate: groups 1 and 2 find no two different providers"
    ]


def test_columns_exclude_hosts_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = snapshot(*(numa_host(n, cell(100 + n, n, vcpus=4 if n == 7 else 1)) for n in range(1, 50)))
    searched: list[int] = []
    reach = Hosts.providers_of
    monkeypatch.setattr(
        Hosts, "providers_of", lambda hosts, row, classes: searched.append(row) or reach(hosts, row, classes)
    )
    group = RequestGroup(resources={"VCPU": 2}, required=(frozenset({"A", "B"}),))
    assert taken(plan(hosts, resources={}, groups={"1": group})) == {}
    assert searched == []
    hosts.put(
        numa_host(
            7, cell(107, 7, traits=frozenset({"B"}), version=ProviderVersion(2, 2, 2)), version=ProviderVersion(2, 2, 2)
        )
    )
    assert list(taken(plan(hosts, resources={}, groups={"1": group}))) == ["h7"]
    assert searched == [6]


def test_plan_skips_hosts_that_cannot_allocate() -> None:
    """The hosts with most free resources have VCPU in one cell and memory in the other."""
    split = {"used": {"VCPU": 4}}, {"used": {"MEMORY_MB": 4096}}
    hosts = snapshot(
        *(
            numa_host(n, *(cell(100 * n + m, n, vcpus=8, memory=8192, **split[m]) for m in (0, 1)))
            for n in range(1, 31)
        ),
        *(numa_host(n, cell(100 * n, n, vcpus=3)) for n in range(31, 41)),
    )
    group = RequestGroup(resources={"VCPU": 3, "MEMORY_MB": 3000})
    full = {n: {"used": {"VCPU": 8}} if n else {"used": {"MEMORY_MB": 8192}} for n in (0, 1)}
    for number in range(1, 31):
        hosts.set_used(100 * number, full[0]["used"], ProviderVersion(2, 1, 2))
        hosts.set_used(100 * number + 1, full[1]["used"], ProviderVersion(2, 1, 2))
    outcome = plan(hosts, resources={}, groups={"1": group}, config={"alternates": 5})
    assert len(outcome.candidates) == 5
    assert {candidate.host for candidate in outcome.candidates} <= {f"h{n}" for n in range(31, 41)}
    result = outcome.diagnosis.filters[-1]
    assert (result.filter, result.rejected, result.left) == ("arrangement", 30, 10)


def test_failed_plan_explains_missing_allocations() -> None:
    hosts = snapshot(
        numa_host(1, cell(101, 1, used={"VCPU": 4}), cell(102, 1, used={"MEMORY_MB": 4096})),
        numa_host(2, cell(201, 2, used={"VCPU": 4}), cell(202, 2, used={"MEMORY_MB": 4000})),
        numa_host(3, cell(301, 3, used={"VCPU": 4})),
        host(4, disabled=True),
    )
    outcome = plan(hosts, resources={"DISK_GB": 1}, groups={"1": RequestGroup(resources=CPU)})
    assert outcome.candidates == ()
    assert outcome.diagnosis.sentence() == (
        "No valid host was found: 4 hosts: 2 cannot allocate: no single provider has 2 VCPU and 1024 MEMORY_MB"
        " for group 1, 1 disabled, 1 lacks 2 VCPU"
    )
    rejection = next(one for one in outcome.diagnosis.rejections if one.host == "h1")
    assert (rejection.filter, rejection.need) == ("arrangement", "1 GB disk, group 1: 2 VCPU, 1024 MB memory")
    assert rejection.have == "no single provider has 2 VCPU and 1024 MEMORY_MB for group 1"


def test_rejection_reports_capacity_split_over_providers() -> None:
    hosts = snapshot(numa_host(1, cell(101, 1, used={"VCPU": 1}), cell(102, 1, used={"VCPU": 2})))
    diagnosis = plan(hosts, resources={"VCPU": 4}).diagnosis
    assert diagnosis.rejections[0].have == "at most 3 VCPU in one provider, 5 VCPU in total"
    assert diagnosis.sentence() == "No valid host was found: 1 host: 1 cannot give one server 4 VCPU"


# Proposals


def test_proposal_counts_on_each_of_its_providers() -> None:
    hosts = snapshot(
        pool(50, 15, "agg"),
        *(numa_host(n, cell(100 + n, n), disk=0, provider_aggregates=frozenset({"agg"})) for n in (1, 2)),
    )
    requested = {**CPU, "DISK_GB": 10}
    [first, _] = plan(hosts, resources=requested).candidates
    hosts.add_proposal(first.uuid, first.allocations, until=10)
    assert taken(plan(hosts, resources=requested)) == {}, "the pool is full with the proposal, for every host"
    with hosts.proposals.suspended():
        assert len(plan(hosts, resources=requested).candidates) == 2
    hosts.discard_proposal(first.uuid)
    assert len(plan(hosts, resources=requested).candidates) == 2
    assert not hosts.proposals
    hosts.add_proposal(first.uuid, first.allocations, until=10)
    hosts.set_used(50, {"DISK_GB": 10}, ProviderVersion(2, 1, 2))  # the claim is read for the pool,
    assert column(hosts, "free", "DISK_GB", 1) == 5
    cell_id = int(next(uuid for uuid in first.allocations if uuid != "uuid-50").removeprefix("uuid-"))
    hosts.set_used(cell_id, {"VCPU": 2, "MEMORY_MB": 1024}, ProviderVersion(3, 1, 2))  # and then on the cell
    assert column(hosts, "free", "VCPU", cell_id - 100) == 2
    assert not hosts.proposals


def test_discarding_a_proposal_keeps_other_hosts_proposals_on_the_pool() -> None:
    hosts = snapshot(
        pool(50, 100, "agg"), *(host(n, inventory={}, provider_aggregates=frozenset({"agg"})) for n in (1, 2))
    )
    for number in (1, 2, 1):
        hosts.add_proposal(f"uuid-{number}", {"uuid-50": {"DISK_GB": 10 * number}}, until=10)
    hosts.discard_proposal("uuid-2")
    assert column(hosts, "free", "DISK_GB", 1) == 80
    hosts.proposals.expire(10)
    assert column(hosts, "free", "DISK_GB", 1) == 100


def test_removed_provider_ends_its_proposals() -> None:
    hosts = snapshot(pool(50, 100, "agg"), numa_host(1, cell(101, 1), provider_aggregates=frozenset({"agg"})))
    hosts.add_proposal("uuid-1", {"uuid-50": {"DISK_GB": 1}, "uuid-101": {"VCPU": 1}, "gone": {"VCPU": 1}}, until=10)
    hosts.drop(50)
    hosts.drop(1)
    assert not hosts.proposals
    hosts.add_proposal("uuid-1", {"uuid-50": {"DISK_GB": 1}}, until=10)
    hosts.discard_proposal("uuid-1")
    assert not hosts.proposals


def test_updated_host_keeps_its_proposals() -> None:
    one = numa_host(1, cell(101, 1))
    hosts = snapshot(one)
    hosts.add_proposal("uuid-1", {"uuid-101": {"VCPU": 3}}, until=10)
    hosts.put(replace(one, disabled=True, version=ProviderVersion(2, 2, 1)))
    assert column(hosts, "free", "VCPU", 1) == 1
