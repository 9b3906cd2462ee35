"""The way outside: NAT where permitted, and floating addresses."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.virt.network_hosts import fabric, network, port, soon, with_ports


def test_guests_reach_the_outside_where_they_may(tmp_path: Path) -> None:
    with fabric(tmp_path) as made:
        host = made.host()
        a, b, c = port("10.1.0.5"), port("10.1.0.5"), port("10.3.0.5")
        # Two with the same addresses, and one that stays inside.
        one, two = with_ports(network(nat=True), a), with_ports(network(nat=True), b)
        three = with_ports(network("10.3.0.0/24"), c)
        host.apply(one, two, three)
        first, second, third = host.guest(one, a), host.guest(two, b), host.guest(three, c)
        for guest in (first, second, third):
            guest.dhcp()
        assert first.ping(made.address)
        assert second.ping(made.address)
        assert not third.ping(made.address)
        # Nobody comes in, and no guest reaches another network this way.
        made.space.do("ip", "route", "add", "169.254.64.0/18", "via", host.address)
        assert not made.space.ping("169.254.64.1")
        assert not first.ping("169.254.64.3")
        host.apply(msgspec.structs.replace(one, nat=False), two, three)
        assert not first.ping(made.address)
        assert second.ping(made.address)


def test_a_floating_address_leads_to_its_guest(tmp_path: Path) -> None:
    with fabric(tmp_path) as made:
        here, there = made.host(), made.host()
        a, b = port("10.1.0.5"), port("10.2.0.5")
        one = with_ports(network("10.1.0.0/24", nat=True), a, floating=[("10.99.0.201", "10.1.0.5")])
        two = with_ports(network("10.2.0.0/24", nat=True), b)
        here.apply(one, two)
        first, second = here.guest(one, a), here.guest(two, b)
        first.dhcp()
        second.dhcp()
        assert made.space.ping("10.99.0.201")
        assert second.ping("10.99.0.201")
        assert first.ping(made.address)
        there.apply()
        # It goes with the guest to another host.
        here.apply(two)
        first.end()
        assert not made.space.ping("10.99.0.201")
        there.apply(one)
        moved = there.guest(one, a)
        moved.dhcp()
        assert soon(lambda: made.space.ping("10.99.0.201"))
        there.apply(msgspec.structs.replace(one, floating=[]))
        assert not made.space.ping("10.99.0.201")
