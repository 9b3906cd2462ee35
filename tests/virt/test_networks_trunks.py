"""Trunks: a guest reaches the networks of subports through VLANs of its parent port."""

from __future__ import annotations

import msgspec
import pytest

from kilonova.hosts.messages import WiredPort
from tests.virt.network_support import (
    ALLOW_ALL,
    ALLOW_EGRESS,
    NAMES,
    Fabric,
    Guest,
    Host,
    all_unreachable,
    eventually,
    network,
    port,
    with_ports,
)


def add_vlan(guest: Guest, subport: WiredPort) -> None:
    """Create the VLAN interface in the guest, with the subport's MAC and address."""
    name = f"eth0.{subport.vlan}"
    vlan = ["type", "vlan", "id", str(subport.vlan)]
    guest.execute("ip", "link", "add", "link", "eth0", "name", name, "address", subport.mac, *vlan)
    guest.execute("ip", "addr", "add", f"{subport.addresses[0]}/24", "dev", name)
    guest.execute("ip", "link", "set", name, "up")


def has_vlans(host: Host) -> bool:
    """Whether the kernel has the module 8021q."""
    supported = host.namespace.succeeds("ip", "link", "add", "link", "lo", "name", "v", "type", "vlan", "id", "1")
    host.execute("ip", "link", "del", "v", check=False)
    return supported


def test_host_without_vlans_serves_other_ports(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5", ALLOW_ALL), port("10.2.0.6", ALLOW_ALL)
    # No kernel has this VLAN.
    subport = msgspec.structs.replace(port("10.2.0.5", ALLOW_ALL), parent=a.id, vlan=5000, guest_id=a.guest_id)
    one, two = with_ports(network(), a), with_ports(network("10.2.0.0/24"), b, subport)
    host.apply(one, two)
    first, second = host.start_guest(one, a), host.start_guest(two, b)
    host.apply(one, two)
    first.dhcp()
    second.dhcp()
    assert second.reaches("10.2.0.1")
    log = host.directory / "log"
    assert eventually(lambda: f"subport {subport.id} has no VLAN interface" in log.read_text())
    assert log.read_text().count(subport.id) == 1


def test_subports_are_in_their_networks(fabric: Fabric) -> None:
    host = fabric.host()
    if not has_vlans(host):
        pytest.skip("the kernel has no VLANs")
    a, neighbour = port("10.1.0.5", ALLOW_ALL), port("10.1.0.6", ALLOW_ALL)
    b, c = port("10.2.0.6", ALLOW_ALL), port("10.3.0.6", ALLOW_ALL)
    seven = msgspec.structs.replace(port("10.2.0.5", ALLOW_EGRESS), parent=a.id, vlan=7, guest_id=a.guest_id)
    eight = msgspec.structs.replace(port("10.3.0.5", ALLOW_ALL), parent=a.id, vlan=8, guest_id=a.guest_id)
    one = with_ports(network(), a, neighbour)
    two, three = with_ports(network("10.2.0.0/24"), b, seven), with_ports(network("10.3.0.0/24"), c, eight)
    host.apply(one, two, three)
    guest, beside = host.start_guest(one, a), host.start_guest(one, neighbour)
    second, third = host.start_guest(two, b), host.start_guest(three, c)
    for started in (guest, beside, second, third):
        started.dhcp()
    add_vlan(guest, seven)
    add_vlan(guest, eight)
    # The host notices the tap by itself.
    for address in ("10.1.0.6", "10.2.0.6", "10.2.0.1", "10.3.0.6"):
        assert guest.reaches(address), address
    assert third.reaches("10.3.0.5")
    # Subports have security groups and addresses of their own.
    assert all_unreachable((second, "10.2.0.5"))
    guest.execute("ip", "addr", "replace", "10.2.0.9/24", "dev", "eth0.7")
    guest.execute("ip", "addr", "del", "10.2.0.5/24", "dev", "eth0.7")
    assert all_unreachable((guest, "10.2.0.6"))
    # A subport gets another VLAN id, and one leaves the trunk.
    nine = msgspec.structs.replace(eight, vlan=9)
    host.apply(one, with_ports(two, b), with_ports(three, c, nine))
    assert NAMES.tap(seven.id) not in host.interfaces()
    guest.execute("ip", "link", "del", "eth0.8")
    add_vlan(guest, nine)
    assert guest.reaches("10.3.0.6")
    # The interfaces vanish with the guest, and return with it.
    guest.end()
    host.guests.remove(guest)
    assert eventually(lambda: NAMES.tap(nine.id) not in host.interfaces())
    again = host.start_guest(one, a)
    add_vlan(again, nine)
    assert again.reaches("10.3.0.6")
