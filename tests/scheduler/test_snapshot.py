"""Updates of the snapshot: hosts, services and proposals."""

from __future__ import annotations

from kilonova.scheduler.snapshot import Hosts, ProviderVersion
from tests.scheduler.support import amounts, host, names, snapshot


def free(hosts: Hosts, uuid: str, resource_class: str = "VCPU") -> float:
    row = hosts.row_of(uuid)
    assert row is not None
    return float(hosts.inventory(resource_class).free[row])


def test_columns_grow_with_number_of_hosts() -> None:
    hosts = Hosts()
    for number in range(1, 1001):
        facts = host(number, traits=frozenset({f"CUSTOM_{number % 3}"}), zone=f"az{number % 2}")
        hosts.put(facts)
    assert len(hosts) == 1000
    assert hosts.size >= 1000
    assert int(hosts.everywhere.sum()) == 1000
    assert int(hosts.has_trait("CUSTOM_1").sum()) == 334
    assert len(names(hosts, hosts.zone == hosts.zone_id("az1"))) == 500
    assert float(hosts.inventory("VCPU").max_allocation.sum()) == 8000
    assert (hosts.inventory("VCPU").step_size == 1).all()


def test_row_of_removed_host_is_cleared_and_reused() -> None:
    hosts = snapshot(host(1, traits=frozenset({"CUSTOM_A"})), host(2))
    hosts.add_proposal("uuid-1", {"uuid-1": {"VCPU": 4}}, until=10)
    hosts.drop(1)
    hosts.drop(99)
    assert (len(hosts), hosts.row_of("uuid-1"), hosts.version(1)) == (1, None, None)
    assert not hosts.has_trait("CUSTOM_A").any()
    assert not (
        hosts.named(["h1"]) | hosts.with_hypervisor_hostname("node1") | hosts.with_hypervisor_uuid("uuid-1")
    ).any()
    assert not hosts.proposals
    hosts.put(host(3, version=ProviderVersion(1, 1, 7)))
    assert hosts.row_of("uuid-3") == 0
    assert free(hosts, "uuid-3") == 8
    assert names(hosts, hosts.everywhere) == {"h2", "h3"}


def test_renamed_host_is_found_by_new_name_only() -> None:
    hosts = snapshot(host(1))
    hosts.put(host(1, host="new", hypervisor_hostname="new-node", service_id=7, version=ProviderVersion(2, 2, 2)))
    assert not hosts.named(["h1"]).any()
    assert names(hosts, hosts.named(["new"]) & hosts.with_hypervisor_hostname("new-node")) == {"new"}
    hosts.set_down_services([1])
    assert hosts.up[0]
    hosts.set_down_services([7])
    assert not hosts.up[0]


def test_older_versions_are_ignored() -> None:
    hosts = snapshot(host(1, used={"VCPU": 4}, version=ProviderVersion(5, 1, 5)))
    hosts.put(host(1, used={"VCPU": 1}, version=ProviderVersion(4, 1, 4)))
    hosts.set_used(1, {"VCPU": 2}, ProviderVersion(3, 1, 3))
    hosts.set_used(99, {"VCPU": 2}, ProviderVersion(9, 1, 3))
    assert free(hosts, "uuid-1") == 4
    hosts.set_used(1, {"VCPU": 6}, ProviderVersion(6, 1, 6))
    assert free(hosts, "uuid-1") == 2
    assert hosts.version(1) == (6, 1, 6)


def test_removed_resource_class_has_no_capacity() -> None:
    hosts = snapshot(host(1), host(2))
    hosts.put(
        host(1, inventory={"VCPU": amounts(4, reserved=1, allocation_ratio=2.0)}, version=ProviderVersion(2, 2, 2))
    )
    assert free(hosts, "uuid-1", "DISK_GB") == 0
    assert free(hosts, "uuid-1") == 6
    assert hosts.inventory("VCPU").max_allocation[0] == 4
    assert free(hosts, "uuid-2", "DISK_GB") == 100


def test_down_services_set_hosts_down_until_they_return() -> None:
    hosts = snapshot(host(1), host(2, forced_down=True))
    hosts.set_down_services([1, 2])
    assert names(hosts, hosts.up) == set()
    hosts.put(host(3, service_id=1))
    assert names(hosts, hosts.up) == set()
    hosts.set_down_services([])
    assert names(hosts, hosts.up) == {"h1", "h3"}


def test_proposal_counts_until_its_claim_is_read() -> None:
    hosts = snapshot(host(1))
    for _ in range(2):
        hosts.add_proposal("uuid-1", {"uuid-1": {"VCPU": 2, "CUSTOM_UNKNOWN": 1}}, until=10)
    assert free(hosts, "uuid-1") == 4
    hosts.set_used(1, {"VCPU": 2}, ProviderVersion(2, 1, 2))
    assert free(hosts, "uuid-1") == 4
    hosts.set_used(1, {"VCPU": 4}, ProviderVersion(3, 1, 3))
    assert free(hosts, "uuid-1") == 4
    assert not hosts.proposals


def test_unclaimed_proposal_expires() -> None:
    hosts = snapshot(host(1), host(2))
    hosts.add_proposal("uuid-1", {"uuid-1": {"VCPU": 1}}, until=10)
    hosts.add_proposal("uuid-2", {"uuid-2": {"VCPU": 1}}, until=11)
    hosts.add_proposal("uuid-1", {"uuid-1": {"VCPU": 2}}, until=12)
    hosts.proposals.end_oldest(1, 1)
    hosts.proposals.expire(10)
    assert (free(hosts, "uuid-1"), free(hosts, "uuid-2")) == (6, 7)
    hosts.proposals.expire(11)
    assert (free(hosts, "uuid-1"), free(hosts, "uuid-2")) == (6, 8)
    hosts.proposals.expire(12)
    assert (free(hosts, "uuid-1"), free(hosts, "uuid-2")) == (8, 8)
    assert not hosts.proposals


def test_suspended_proposals_do_not_count() -> None:
    hosts = snapshot(host(1))
    hosts.add_proposal("uuid-1", {"uuid-1": {"VCPU": 3}}, until=10)
    with hosts.proposals.suspended():
        assert free(hosts, "uuid-1") == 8
    assert free(hosts, "uuid-1") == 5
