"""External access: NAT and floating IPs."""

from __future__ import annotations

import msgspec

from tests.virt.network_support import Fabric, all_unreachable, network, port, with_ports


def test_nat_for_permitted_networks(fabric: Fabric) -> None:
    host = fabric.host()
    a, b, c = port("10.1.0.5"), port("10.1.0.5"), port("10.3.0.5")
    # Two networks with the same addresses, and one without NAT.
    one, two = with_ports(network(nat=True), a), with_ports(network(nat=True), b)
    three = with_ports(network("10.3.0.0/24"), c)
    host.apply(one, two, three)
    first, second, third = host.start_guest(one, a), host.start_guest(two, b), host.start_guest(three, c)
    for guest in (first, second, third):
        guest.dhcp()
    assert first.reaches(fabric.address)
    assert second.reaches(fabric.address)
    assert not third.ping(fabric.address)
    # No incoming connections, and no connections between networks.
    fabric.namespace.execute("ip", "route", "add", "169.254.64.0/18", "via", host.address)
    assert all_unreachable((fabric.namespace, "169.254.64.1"), (first, "169.254.64.3"))
    host.apply(msgspec.structs.replace(one, nat=False), two, three)
    assert not first.ping(fabric.address)
    assert second.reaches(fabric.address)


def test_floating_ip_follows_its_guest(fabric: Fabric) -> None:
    here, there = fabric.host(), fabric.host()
    a, b = port("10.1.0.5"), port("10.2.0.5")
    one = with_ports(network("10.1.0.0/24", nat=True), a, floating=[("10.99.0.201", "10.1.0.5")])
    two = with_ports(network("10.2.0.0/24", nat=True), b)
    here.apply(one, two)
    first, second = here.start_guest(one, a), here.start_guest(two, b)
    first.dhcp()
    second.dhcp()
    assert fabric.namespace.reaches("10.99.0.201")
    assert second.reaches("10.99.0.201")
    assert first.reaches(fabric.address)
    there.apply()
    # The floating IP follows the guest to another host.
    here.apply(two)
    first.end()
    assert not fabric.namespace.ping("10.99.0.201")
    there.apply(one)
    moved = there.start_guest(one, a)
    moved.dhcp()
    assert fabric.namespace.reaches("10.99.0.201")
    there.apply(msgspec.structs.replace(one, floating=[]))
    assert not fabric.namespace.ping("10.99.0.201")


def test_blocked_addresses_and_hosts_are_unreachable(fabric: Fabric) -> None:
    _add_external_addresses(fabric, "10.99.0.2", "10.99.7.7", "10.99.8.8")
    host, peer = fabric.host(blocked_addresses=["10.99.7.0/24", "10.99.0.2", "fd00::/8"]), fabric.host()
    a, b = port("10.1.0.5"), port("10.2.0.5")
    base, two = network("10.1.0.0/24", nat=True), with_ports(network("10.2.0.0/24", nat=True), b)
    one = with_ports(base, a, floating=[("10.99.0.201", "10.1.0.5")])
    host.apply(one, two)
    first, second = host.start_guest(one, a), host.start_guest(two, b)
    first.dhcp()
    second.dhcp()
    # From a floating IP and through the host's address.
    for guest in (first, second):
        assert guest.reaches("10.99.8.8")
        assert guest.reaches(peer.address)
    assert all_unreachable(*((guest, closed) for guest in (first, second) for closed in ("10.99.7.7", "10.99.0.2")))
    # Blocked addresses can still connect to guests.
    assert fabric.namespace.reaches("10.99.0.201", "-I", "10.99.0.2")
    # A host is blocked for guests of all networks as eventually as it has a network.
    host.apply(msgspec.structs.replace(one, peers=[peer.address]), two)
    assert all_unreachable((first, peer.address), (second, peer.address))
    for guest in (first, second):
        assert guest.reaches("10.99.8.8")


def _add_external_addresses(fabric: Fabric, *addresses: str) -> None:
    for address in addresses:
        fabric.namespace.execute("ip", "addr", "add", f"{address}/32", "dev", "sw")
