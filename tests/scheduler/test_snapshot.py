"""The columns: hosts come, change, go and come back, and proposals count until they are claims."""

from __future__ import annotations

from kilonova.scheduler.snapshot import Hosts, Marks
from tests.scheduler.support import amounts, host, names, snapshot


def free(hosts: Hosts, uuid: str, resource_class: str = "VCPU") -> float:
    row = hosts.row_of(uuid)
    assert row is not None
    return float(hosts.stock(resource_class).free[row])


def test_columns_grow_with_the_hosts() -> None:
    hosts = Hosts()
    for number in range(1, 1001):
        facts = host(number, traits=frozenset({f"CUSTOM_{number % 3}"}), zone=f"az{number % 2}")
        hosts.put(facts)
    assert len(hosts) == 1000
    assert hosts.size >= 1000
    assert int(hosts.everywhere.sum()) == 1000
    assert int(hosts.has_trait("CUSTOM_1").sum()) == 334
    assert len(names(hosts, hosts.zone == hosts.zone_id("az1"))) == 500
    assert float(hosts.stock("VCPU").room.sum()) == 8000
    assert (hosts.stock("VCPU").step_size == 1).all()


def test_a_departed_host_leaves_no_trace_and_its_place_is_used_again() -> None:
    hosts = snapshot(host(1, traits=frozenset({"CUSTOM_A"})), host(2))
    hosts.foresee("uuid-1", {"uuid-1": {"VCPU": 4}}, until=10)
    hosts.drop(1)
    hosts.drop(99)
    assert (len(hosts), hosts.row_of("uuid-1"), hosts.marks(1)) == (1, None, None)
    assert not hosts.has_trait("CUSTOM_A").any()
    assert not (hosts.named(["h1"]) | hosts.called("node1") | hosts.hypervisor("uuid-1")).any()
    assert not hosts.foresight
    hosts.put(host(3, marks=Marks(1, 1, 7)))
    assert hosts.row_of("uuid-3") == 0
    assert free(hosts, "uuid-3") == 8
    assert names(hosts, hosts.everywhere) == {"h2", "h3"}


def test_a_renamed_host_is_found_by_its_new_name_only() -> None:
    hosts = snapshot(host(1))
    hosts.put(host(1, host="new", hypervisor_hostname="new-node", service_id=7, marks=Marks(2, 2, 2)))
    assert not hosts.named(["h1"]).any()
    assert names(hosts, hosts.named(["new"]) & hosts.called("new-node")) == {"new"}
    hosts.set_silent([1])
    assert hosts.up[0]
    hosts.set_silent([7])
    assert not hosts.up[0]


def test_old_news_is_ignored() -> None:
    hosts = snapshot(host(1, used={"VCPU": 4}, marks=Marks(5, 1, 5)))
    hosts.put(host(1, used={"VCPU": 1}, marks=Marks(4, 1, 4)))
    hosts.use(1, {"VCPU": 2}, Marks(3, 1, 3))
    hosts.use(99, {"VCPU": 2}, Marks(9, 1, 3))
    assert free(hosts, "uuid-1") == 4
    hosts.use(1, {"VCPU": 6}, Marks(6, 1, 6))
    assert free(hosts, "uuid-1") == 2
    assert hosts.marks(1) == (6, 1, 6)


def test_a_class_that_a_host_loses_has_no_room_left() -> None:
    hosts = snapshot(host(1), host(2))
    hosts.put(host(1, inventory={"VCPU": amounts(4, reserved=1, allocation_ratio=2.0)}, marks=Marks(2, 2, 2)))
    assert free(hosts, "uuid-1", "DISK_GB") == 0
    assert free(hosts, "uuid-1") == 6
    assert hosts.stock("VCPU").room[0] == 4
    assert free(hosts, "uuid-2", "DISK_GB") == 100


def test_silent_services_are_down_and_come_back() -> None:
    hosts = snapshot(host(1), host(2, forced_down=True))
    hosts.set_silent([1, 2])
    assert names(hosts, hosts.up) == set()
    hosts.put(host(3, service_id=1))
    assert names(hosts, hosts.up) == set()
    hosts.set_silent([])
    assert names(hosts, hosts.up) == {"h1", "h3"}


def test_a_proposal_counts_until_its_claim_shows() -> None:
    hosts = snapshot(host(1))
    for _ in range(2):
        hosts.foresee("uuid-1", {"uuid-1": {"VCPU": 2, "CUSTOM_UNKNOWN": 1}}, until=10)
    assert free(hosts, "uuid-1") == 4
    hosts.use(1, {"VCPU": 2}, Marks(2, 1, 2))
    assert free(hosts, "uuid-1") == 4
    hosts.use(1, {"VCPU": 4}, Marks(3, 1, 3))
    assert free(hosts, "uuid-1") == 4
    assert not hosts.foresight


def test_a_proposal_that_comes_to_nothing_is_forgotten_in_time() -> None:
    hosts = snapshot(host(1), host(2))
    hosts.foresee("uuid-1", {"uuid-1": {"VCPU": 1}}, until=10)
    hosts.foresee("uuid-2", {"uuid-2": {"VCPU": 1}}, until=11)
    hosts.foresee("uuid-1", {"uuid-1": {"VCPU": 2}}, until=12)
    hosts.foresight.settle(1, 1)
    hosts.foresight.expire(10)
    assert (free(hosts, "uuid-1"), free(hosts, "uuid-2")) == (6, 7)
    hosts.foresight.expire(11)
    assert (free(hosts, "uuid-1"), free(hosts, "uuid-2")) == (6, 8)
    hosts.foresight.expire(12)
    assert (free(hosts, "uuid-1"), free(hosts, "uuid-2")) == (8, 8)
    assert not hosts.foresight


def test_suspended_proposals_do_not_count() -> None:
    hosts = snapshot(host(1))
    hosts.foresee("uuid-1", {"uuid-1": {"VCPU": 3}}, until=10)
    with hosts.foresight.suspended():
        assert free(hosts, "uuid-1") == 8
    assert free(hosts, "uuid-1") == 5
