"""Guests on one host and on two: addresses, each other, and nobody else."""

from __future__ import annotations

from pathlib import Path

from kilonova.hosts.messages import Firewall
from tests.virt.network_hosts import NAMES, OUTWARD, fabric, network, port, soon, with_ports


def test_a_guest_gets_the_address_of_its_port_and_reaches_its_network_only(tmp_path: Path) -> None:
    with fabric(tmp_path) as made:
        host = made.host()
        a, b, c = port("10.1.0.5"), port("10.1.0.6"), port("10.2.0.5")
        one = with_ports(network("10.1.0.0/24", mtu=1400, subnet={"dns": ["9.9.9.9"]}), a, b)
        two = with_ports(network("10.2.0.0/24"), c)
        host.apply(one, two)
        first, second, third = host.guest(one, a), host.guest(one, b), host.guest(two, c)
        assert first.dhcp() == "10.1.0.5 24 mtu=1400 dns=9.9.9.9 router=10.1.0.1"
        second.dhcp()
        third.dhcp()
        assert first.ping("10.1.0.6")
        assert first.ping("10.1.0.1")
        assert not first.ping("10.2.0.5")
        assert host.ask("wired", f"{a.id} {c.id}") == [1400, 1450]


def test_guests_of_two_hosts_are_on_one_network(tmp_path: Path) -> None:
    with fabric(tmp_path) as made:
        here, there = made.host(), made.host()
        a, b = port("10.1.0.5"), port("10.1.0.6")
        base = network()
        one = with_ports(base, a, peers=[there.address])
        two = with_ports(base, b, peers=[here.address])
        here.apply(one)
        there.apply(two)
        first, second = here.guest(one, a), there.guest(two, b)
        assert first.dhcp().startswith("10.1.0.5 ")
        assert second.dhcp().startswith("10.1.0.6 ")
        assert first.ping("10.1.0.6")
        assert second.ping("10.1.0.5")
        assert first.ping("10.1.0.1")
        assert second.ping("10.1.0.1")


def test_a_security_group_blocks_and_then_permits(tmp_path: Path) -> None:
    with fabric(tmp_path) as made:
        host = made.host()
        a, b = port("10.1.0.5"), port("10.1.0.6", OUTWARD)
        one = with_ports(network(), a, b)
        host.apply(one)
        first, second = host.guest(one, a), host.guest(one, b)
        first.dhcp()
        second.dhcp()
        assert not first.ping("10.1.0.6")
        assert second.ping("10.1.0.5")
        permitted = [*OUTWARD, Firewall(direction="ingress", ethertype="IPv4", protocol="1", remotes=["10.1.0.5/32"])]
        import msgspec

        b = msgspec.structs.replace(b, rules=permitted)
        host.apply(with_ports(one, a, b))
        assert first.ping("10.1.0.6")


def test_metadata_tells_each_guest_who_it_is(tmp_path: Path) -> None:
    with fabric(tmp_path) as made:
        host = made.host()
        a, b = port("10.1.0.5"), port("10.1.0.6")
        one = with_ports(network(), a, b)
        host.apply(one)
        first, second = host.guest(one, a), host.guest(one, b)
        first.dhcp()
        second.dhcp()
        path = "/openstack/latest/meta_data.json"
        assert f'"uuid":"{a.guest_id}"' in first.asks(path)
        assert f'"uuid":"{b.guest_id}"' in second.asks(path, "X-Forwarded-For: 10.1.0.5")
        assert "404 Not Found" in first.asks("/nothing")
        assert soon(lambda: NAMES.bridge(one.id) in host.interfaces())
