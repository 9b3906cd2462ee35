"""Hosts that are several providers, and providers that serve several hosts: columns, plans, proposals, reasons."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kilonova.placement.candidates.model import Group
from kilonova.placement.facts import SHARES
from kilonova.scheduler import Plan, Request, SchedulerConfig
from kilonova.scheduler.plan import Planner
from kilonova.scheduler.snapshot import Hosts
from kilonova.scheduler.trees import Marks
from tests.scheduler.support import TINY, amounts, cell, host, member, names, numa_host, pool, snapshot

CPU = {"VCPU": 2, "MEMORY_MB": 1024}


def plan(hosts: Hosts, *, config: dict[str, Any] | None = None, **asked: Any) -> Plan:
    planner = Planner(SchedulerConfig(**{"jitter": 0.0} | (config or {})))
    return planner.plan(Request(**{"resources": TINY} | asked), hosts)


def taken(outcome: Plan) -> dict[str, dict[str, dict[str, int]]]:
    return {candidate.host: candidate.allocations for candidate in outcome.candidates}


def column(hosts: Hosts, name: str, resource_class: str, host_number: int) -> float:
    row = hosts.row_of(f"uuid-{host_number}")
    assert row is not None
    return float(getattr(hosts.stock(resource_class), name)[row])


# Columns


def test_a_trees_columns_are_the_sum_and_the_best_of_its_providers() -> None:
    hosts = snapshot(
        numa_host(1, cell(101, 1, used={"VCPU": 3}), cell(102, 1, vcpus=6, used={"VCPU": 1})),
        host(2),
    )
    assert column(hosts, "limit", "VCPU", 1) == 10
    assert column(hosts, "used", "VCPU", 1) == 4
    assert column(hosts, "free", "VCPU", 1) == 6
    assert column(hosts, "room", "VCPU", 1) == 5
    assert column(hosts, "room", "DISK_GB", 1) == 100
    assert column(hosts, "room", "VCPU", 2) == 8
    hosts.use(102, {"VCPU": 6}, Marks(2, 1, 2))
    assert (column(hosts, "free", "VCPU", 1), column(hosts, "room", "VCPU", 1)) == (1, 1)
    hosts.use(102, {"VCPU": 0}, Marks(1, 1, 1))  # old news
    assert column(hosts, "room", "VCPU", 1) == 1


def test_units_of_a_tree_let_pass_what_any_provider_would_give() -> None:
    coarse = {"DISK_GB": amounts(100, min_unit=20, step_size=10)}
    fine = {"DISK_GB": amounts(30, min_unit=5, step_size=5)}
    hosts = snapshot(
        host(1, inventory=coarse),
        host(2, inventory=coarse, children=(member(102, "uuid-2", "uuid-2", inventory=fine),)),
    )
    assert list(taken(plan(hosts, resources={"DISK_GB": 15}))) == ["h2"]
    assert set(taken(plan(hosts, resources={"DISK_GB": 40}))) == {"h1", "h2"}
    assert taken(plan(hosts, resources={"DISK_GB": 7})) == {}


def test_shared_room_shows_with_every_host_that_it_reaches_and_nobody_else() -> None:
    hosts = snapshot(
        pool(50, 500, "agg1"),
        host(1, provider_aggregates=frozenset({"agg1", "agg2"})),
        host(2, inventory={"VCPU": amounts(8), "MEMORY_MB": amounts(8192)}, provider_aggregates=frozenset({"agg1"})),
        host(3, provider_aggregates=frozenset({"agg2"})),
        numa_host(4, cell(104, 4, aggregates=frozenset({"agg1"})), disk=0),
    )
    rooms = [column(hosts, "room", "DISK_GB", number) for number in (1, 2, 3, 4)]
    assert rooms == [500, 500, 100, 500]
    assert [column(hosts, "free", "DISK_GB", number) for number in (1, 2, 3, 4)] == [600, 500, 100, 500]
    hosts.use(50, {"DISK_GB": 480}, Marks(2, 1, 2))
    assert [column(hosts, "room", "DISK_GB", number) for number in (1, 2, 3, 4)] == [100, 20, 100, 20]
    hosts.put_sharing(pool(50, 500, "agg2", marks=Marks(3, 3, 3)))  # it serves others now
    assert [column(hosts, "room", "DISK_GB", number) for number in (1, 2, 3, 4)] == [500, 0, 500, 0]
    hosts.put_sharing(pool(50, 500, "agg2", traits=frozenset(), marks=Marks(4, 4, 4)))
    assert [column(hosts, "room", "DISK_GB", number) for number in (1, 2, 3, 4)] == [100, 0, 100, 0]
    hosts.put_sharing(pool(50, 500, "agg2", marks=Marks(5, 5, 5)))
    hosts.drop(50)
    assert [column(hosts, "room", "DISK_GB", number) for number in (1, 2, 3, 4)] == [100, 0, 100, 0]
    assert not hosts.sharing


def test_columns_that_grow_keep_trees_and_circles() -> None:
    hosts = snapshot(pool(5000, 500, "agg"), numa_host(1, cell(6000, 1)))
    for number in range(2, 1000):
        hosts.put(host(number, provider_aggregates=frozenset({"agg"} if number % 2 else {"other"})))
    assert column(hosts, "room", "VCPU", 1) == 4
    assert (hosts.stock("DISK_GB").room == 500).sum() == 499
    hosts.use(6000, {"VCPU": 4}, Marks(2, 1, 2))
    assert column(hosts, "room", "VCPU", 1) == 0


def test_a_host_becomes_a_tree_and_plain_again() -> None:
    hosts = snapshot(host(1), host(2))
    assert hosts.simple
    hosts.foresee("uuid-1", {"uuid-1": {"VCPU": 3}}, until=10)
    hosts.put(numa_host(1, cell(101, 1), cell(102, 1), traits=frozenset({"A"}), marks=Marks(2, 2, 2)))
    assert not hosts.simple
    assert (column(hosts, "free", "VCPU", 1), column(hosts, "room", "VCPU", 1)) == (8, 4)
    hosts.foresee("uuid-1", {"uuid-101": {"VCPU": 3}}, until=10)
    assert (column(hosts, "free", "VCPU", 1), column(hosts, "foreseen", "VCPU", 1)) == (5, 3)
    hosts.put(host(1, marks=Marks(3, 3, 3)))
    assert hosts.simple
    assert hosts.marks(101) is None
    assert (column(hosts, "free", "VCPU", 1), column(hosts, "foreseen", "VCPU", 1)) == (8, 0)
    hosts.put(numa_host(1, cell(101, 1), marks=Marks(4, 4, 4)))
    hosts.drop(1)
    assert hosts.simple
    assert names(hosts, hosts.everywhere) == {"h2"}


def test_a_provider_that_is_no_longer_there_leaves_its_tree_unless_it_came_later() -> None:
    hosts = snapshot(numa_host(1, cell(101, 1), cell(102, 1, vcpus=6), look=1))
    hosts.put(numa_host(1, cell(101, 1), look=2))
    assert column(hosts, "room", "VCPU", 1) == 4
    hosts.put(numa_host(1, cell(101, 1), cell(103, 1, vcpus=7), look=4))
    hosts.put(numa_host(1, cell(101, 1), look=3))  # an earlier look that is applied late
    assert column(hosts, "room", "VCPU", 1) == 7
    hosts.drop(103)
    assert column(hosts, "room", "VCPU", 1) == 4


def test_a_provider_moves_from_one_host_to_another() -> None:
    hosts = snapshot(numa_host(1, cell(101, 1), cell(102, 1, vcpus=6)), numa_host(2, cell(201, 2)))
    hosts.put(numa_host(2, cell(201, 2), cell(102, 2, vcpus=6, marks=Marks(2, 2, 2)), marks=Marks(2, 2, 2)))
    assert [column(hosts, "room", "VCPU", number) for number in (1, 2)] == [4, 6]


def test_a_host_that_shares_serves_itself_once() -> None:
    both = frozenset({"agg"})
    hosts = snapshot(
        host(1, traits=frozenset({SHARES}), provider_aggregates=both),
        host(2, inventory={"VCPU": amounts(8), "MEMORY_MB": amounts(8192)}, provider_aggregates=both),
    )
    assert [column(hosts, "free", "DISK_GB", number) for number in (1, 2)] == [100, 100]
    assert taken(plan(hosts)) == {
        "h1": {"uuid-1": TINY},
        "h2": {"uuid-2": {"VCPU": 1, "MEMORY_MB": 512}, "uuid-1": {"DISK_GB": 1}},
    }


# Traits


def test_traits_of_a_tree_are_those_of_any_provider_until_all_have_them() -> None:
    some, every = frozenset({"SOME"}), frozenset({"EVERY"})
    hosts = snapshot(
        numa_host(1, cell(101, 1, traits=some | every), traits=every),
        host(2, traits=some),
        pool(50, 500, "agg", traits=frozenset({SHARES, "SSD"})),
        host(3, provider_aggregates=frozenset({"agg"}), traits=every),
    )
    assert names(hosts, hosts.has_trait("SOME")) == {"h1", "h2"}
    assert names(hosts, hosts.has_trait("SSD")) == {"h3"}
    assert names(hosts, hosts.is_all("SOME")) == {"h2"}
    assert names(hosts, hosts.is_all("EVERY")) == {"h1"}
    hosts.put(numa_host(1, cell(101, 1, traits=every, marks=Marks(2, 2, 2)), marks=Marks(2, 2, 2)))
    assert names(hosts, hosts.has_trait("SOME")) == {"h2"}
    assert names(hosts, hosts.is_all("EVERY")) == set()
    hosts.put(host(1, traits=some, marks=Marks(3, 3, 3)))
    assert names(hosts, hosts.is_all("SOME")) == {"h1", "h2"}


def test_a_forbidden_trait_spares_the_providers_without_it() -> None:
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
        "1 cannot arrange: no provider with 2 VCPU is without CUSTOM_FAST",
    ]


# Plans


def test_plain_hosts_are_decided_by_their_columns_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = snapshot(host(1), host(2, used={"VCPU": 8}))
    monkeypatch.setattr(Hosts, "reach", lambda *_: pytest.fail("looked at providers one by one"))
    outcome = plan(hosts)
    assert taken(outcome) == {"h1": {"uuid-1": TINY}}
    assert outcome.diagnosis.filters[-1].filter == "capacity"


def test_a_server_takes_from_a_cell_from_the_host_and_from_a_pool() -> None:
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


def test_small_servers_fill_one_cell_before_the_next() -> None:
    hosts = snapshot(numa_host(1, cell(101, 1), cell(102, 1, used={"VCPU": 1, "MEMORY_MB": 512})))
    assert taken(plan(hosts, resources=CPU)) == {"h1": {"uuid-102": CPU}}
    assert taken(plan(hosts, resources={"VCPU": 4, "MEMORY_MB": 512})) == {
        "h1": {"uuid-101": {"VCPU": 4, "MEMORY_MB": 512}}
    }


def test_a_server_stays_in_one_cell_if_it_can() -> None:
    """The tightest cell for processors is not the tightest one for memory."""
    hosts = snapshot(
        numa_host(1, cell(101, 1, used={"VCPU": 2, "MEMORY_MB": 4000}), cell(102, 1)),
    )
    assert taken(plan(hosts, resources=CPU)) == {"h1": {"uuid-102": CPU}}


GROUPED = {
    "resources": {"DISK_GB": 5},
    "groups": {"1": Group(resources={"VCPU": 2}), "2": Group(resources={"VCPU": 2})},
}


def test_numbered_groups_go_where_their_policy_says() -> None:
    hosts = snapshot(numa_host(1, cell(101, 1), cell(102, 1)), host(2))
    together = taken(plan(hosts, **GROUPED))
    assert together["h2"] == {"uuid-2": {"VCPU": 4, "DISK_GB": 5}}
    apart = plan(hosts, **GROUPED, isolate=True)
    assert taken(apart) == {"h1": {"uuid-1": {"DISK_GB": 5}, "uuid-101": {"VCPU": 2}, "uuid-102": {"VCPU": 2}}}
    assert [str(cause) for cause in apart.diagnosis.causes] == [
        "1 cannot arrange: groups 1 and 2 find no two different providers"
    ]


def test_columns_spare_the_search_hosts_without_what_a_group_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = snapshot(*(numa_host(n, cell(100 + n, n, vcpus=4 if n == 7 else 1)) for n in range(1, 50)))
    looked: list[int] = []
    reach = Hosts.reach
    monkeypatch.setattr(Hosts, "reach", lambda hosts, row, classes: looked.append(row) or reach(hosts, row, classes))
    group = Group(resources={"VCPU": 2}, required=(frozenset({"A", "B"}),))
    assert taken(plan(hosts, resources={}, groups={"1": group})) == {}
    assert looked == []
    hosts.put(numa_host(7, cell(107, 7, traits=frozenset({"B"}), marks=Marks(2, 2, 2)), marks=Marks(2, 2, 2)))
    assert list(taken(plan(hosts, resources={}, groups={"1": group}))) == ["h7"]
    assert looked == [6]


def test_hosts_that_cannot_arrange_it_are_passed_until_there_are_enough() -> None:
    """The freest hosts have processors in one cell and memory in the other."""
    split = {"used": {"VCPU": 4}}, {"used": {"MEMORY_MB": 4096}}
    hosts = snapshot(
        *(
            numa_host(n, *(cell(100 * n + m, n, vcpus=8, memory=8192, **split[m]) for m in (0, 1)))
            for n in range(1, 31)
        ),
        *(numa_host(n, cell(100 * n, n, vcpus=3)) for n in range(31, 41)),
    )
    group = Group(resources={"VCPU": 3, "MEMORY_MB": 3000})
    full = {n: {"used": {"VCPU": 8}} if n else {"used": {"MEMORY_MB": 8192}} for n in (0, 1)}
    for number in range(1, 31):
        hosts.use(100 * number, full[0]["used"], Marks(2, 1, 2))
        hosts.use(100 * number + 1, full[1]["used"], Marks(2, 1, 2))
    outcome = plan(hosts, resources={}, groups={"1": group}, config={"alternates": 5})
    assert len(outcome.candidates) == 5
    assert {candidate.host for candidate in outcome.candidates} <= {f"h{n}" for n in range(31, 41)}
    result = outcome.diagnosis.filters[-1]
    assert (result.filter, result.rejected, result.left) == ("arrangement", 30, 10)


def test_a_refusal_says_why_nothing_can_be_arranged() -> None:
    hosts = snapshot(
        numa_host(1, cell(101, 1, used={"VCPU": 4}), cell(102, 1, used={"MEMORY_MB": 4096})),
        numa_host(2, cell(201, 2, used={"VCPU": 4}), cell(202, 2, used={"MEMORY_MB": 4000})),
        numa_host(3, cell(301, 3, used={"VCPU": 4})),
        host(4, disabled=True),
    )
    outcome = plan(hosts, resources={"DISK_GB": 1}, groups={"1": Group(resources=CPU)})
    assert outcome.candidates == ()
    assert outcome.diagnosis.sentence() == (
        "No valid host was found: 4 hosts: 2 cannot arrange: no single provider has 2 VCPU and 1024 MEMORY_MB"
        " for group 1, 1 disabled, 1 lacks 2 VCPU"
    )
    rejection = next(one for one in outcome.diagnosis.rejections if one.host == "h1")
    assert (rejection.filter, rejection.need) == ("arrangement", "1 GB disk, group 1: 2 VCPU, 1024 MB memory")
    assert rejection.have == "no single provider has 2 VCPU and 1024 MEMORY_MB for group 1"


def test_room_in_pieces_is_called_so() -> None:
    hosts = snapshot(numa_host(1, cell(101, 1, used={"VCPU": 1}), cell(102, 1, used={"VCPU": 2})))
    diagnosis = plan(hosts, resources={"VCPU": 4}).diagnosis
    assert diagnosis.rejections[0].have == "at most 3 VCPU in one place, 5 VCPU altogether"
    assert diagnosis.sentence() == "No valid host was found: 1 host: 1 cannot give one server 4 VCPU"


# Proposals


def test_a_proposal_counts_on_the_providers_it_takes_from() -> None:
    hosts = snapshot(
        pool(50, 15, "agg"),
        *(numa_host(n, cell(100 + n, n), disk=0, provider_aggregates=frozenset({"agg"})) for n in (1, 2)),
    )
    asked = {**CPU, "DISK_GB": 10}
    [first, _] = plan(hosts, resources=asked).candidates
    hosts.foresee(first.uuid, first.allocations, until=10)
    assert taken(plan(hosts, resources=asked)) == {}, "the pool is spoken for, whatever the host"
    with hosts.foresight.suspended():
        assert len(plan(hosts, resources=asked).candidates) == 2
    hosts.give_up(first.uuid)
    assert len(plan(hosts, resources=asked).candidates) == 2
    assert not hosts.foresight
    hosts.foresee(first.uuid, first.allocations, until=10)
    hosts.use(50, {"DISK_GB": 10}, Marks(2, 1, 2))  # the claim shows on the pool,
    assert column(hosts, "free", "DISK_GB", 1) == 5
    cell_id = int(next(uuid for uuid in first.allocations if uuid != "uuid-50").removeprefix("uuid-"))
    hosts.use(cell_id, {"VCPU": 2, "MEMORY_MB": 1024}, Marks(3, 1, 2))  # and then on the cell
    assert column(hosts, "free", "VCPU", cell_id - 100) == 2
    assert not hosts.foresight


def test_giving_up_one_host_leaves_the_proposals_of_others_on_a_pool() -> None:
    hosts = snapshot(
        pool(50, 100, "agg"), *(host(n, inventory={}, provider_aggregates=frozenset({"agg"})) for n in (1, 2))
    )
    for number in (1, 2, 1):
        hosts.foresee(f"uuid-{number}", {"uuid-50": {"DISK_GB": 10 * number}}, until=10)
    hosts.give_up("uuid-2")
    assert column(hosts, "free", "DISK_GB", 1) == 80
    hosts.foresight.expire(10)
    assert column(hosts, "free", "DISK_GB", 1) == 100


def test_a_departing_provider_takes_its_proposals_along() -> None:
    hosts = snapshot(pool(50, 100, "agg"), numa_host(1, cell(101, 1), provider_aggregates=frozenset({"agg"})))
    hosts.foresee("uuid-1", {"uuid-50": {"DISK_GB": 1}, "uuid-101": {"VCPU": 1}, "gone": {"VCPU": 1}}, until=10)
    hosts.drop(50)
    hosts.drop(1)
    assert not hosts.foresight
    hosts.foresee("uuid-1", {"uuid-50": {"DISK_GB": 1}}, until=10)
    hosts.give_up("uuid-1")
    assert not hosts.foresight


def test_replaced_facts_keep_proposals() -> None:
    one = numa_host(1, cell(101, 1))
    hosts = snapshot(one)
    hosts.foresee("uuid-1", {"uuid-101": {"VCPU": 3}}, until=10)
    hosts.put(replace(one, disabled=True, marks=Marks(2, 2, 1)))
    assert column(hosts, "free", "VCPU", 1) == 1
