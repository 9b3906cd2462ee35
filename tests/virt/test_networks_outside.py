"""The way outside: NAT where permitted, and floating addresses."""

from __future__ import annotations

import msgspec

from tests.virt.network_hosts import Fabric, network, nobody_reaches, port, with_ports


def test_guests_reach_the_outside_where_they_may(fabric: Fabric) -> None:
    host = fabric.host()
    a, b, c = port("10.1.0.5"), port("10.1.0.5"), port("10.3.0.5")
    # Two with the same addresses, and one that stays inside.
    one, two = with_ports(network(nat=True), a), with_ports(network(nat=True), b)
    three = with_ports(network("10.3.0.0/24"), c)
    host.apply(one, two, three)
    first, second, third = host.guest(one, a), host.guest(two, b), host.guest(three, c)
    for guest in (first, second, third):
        guest.dhcp()
    assert first.reaches(fabric.address)
    assert second.reaches(fabric.address)
    assert not third.ping(fabric.address)
    # Nobody comes in, and no guest reaches another network this way.
    fabric.space.do("ip", "route", "add", "169.254.64.0/18", "via", host.address)
    assert nobody_reaches((fabric.space, "169.254.64.1"), (first, "169.254.64.3"))
    host.apply(msgspec.structs.replace(one, nat=False), two, three)
    assert not first.ping(fabric.address)
    assert second.reaches(fabric.address)


def test_a_floating_address_leads_to_its_guest(fabric: Fabric) -> None:
    here, there = fabric.host(), fabric.host()
    a, b = port("10.1.0.5"), port("10.2.0.5")
    one = with_ports(network("10.1.0.0/24", nat=True), a, floating=[("10.99.0.201", "10.1.0.5")])
    two = with_ports(network("10.2.0.0/24", nat=True), b)
    here.apply(one, two)
    first, second = here.guest(one, a), here.guest(two, b)
    first.dhcp()
    second.dhcp()
    assert fabric.space.reaches("10.99.0.201")
    assert second.reaches("10.99.0.201")
    assert first.reaches(fabric.address)
    there.apply()
    # It goes with the guest to another host.
    here.apply(two)
    first.end()
    assert not fabric.space.ping("10.99.0.201")
    there.apply(one)
    moved = there.guest(one, a)
    moved.dhcp()
    assert fabric.space.reaches("10.99.0.201")
    there.apply(msgspec.structs.replace(one, floating=[]))
    assert not fabric.space.ping("10.99.0.201")


def test_what_is_the_operators_is_closed_to_guests(fabric: Fabric) -> None:
    _outside(fabric, "10.99.0.2", "10.99.7.7", "10.99.8.8")
    host, peer = fabric.host(closed=["10.99.7.0/24", "10.99.0.2", "fd00::/8"]), fabric.host()
    a, b = port("10.1.0.5"), port("10.2.0.5")
    base, two = network("10.1.0.0/24", nat=True), with_ports(network("10.2.0.0/24", nat=True), b)
    one = with_ports(base, a, floating=[("10.99.0.201", "10.1.0.5")])
    host.apply(one, two)
    first, second = host.guest(one, a), host.guest(two, b)
    first.dhcp()
    second.dhcp()
    # By a floating address and by the host's own.
    for guest in (first, second):
        assert guest.reaches("10.99.8.8")
        assert guest.reaches(peer.address)
    assert nobody_reaches(*((guest, closed) for guest in (first, second) for closed in ("10.99.7.7", "10.99.0.2")))
    # Whoever is there reaches guests nevertheless.
    assert fabric.space.reaches("10.99.0.201", "-I", "10.99.0.2")
    # A host is closed as soon as it has a network of guests, also to those of other networks.
    host.apply(msgspec.structs.replace(one, peers=[peer.address]), two)
    assert nobody_reaches((first, peer.address), (second, peer.address))
    for guest in (first, second):
        assert guest.reaches("10.99.8.8")


def _outside(fabric: Fabric, *addresses: str) -> None:
    for address in addresses:
        fabric.space.do("ip", "addr", "add", f"{address}/32", "dev", "sw")
