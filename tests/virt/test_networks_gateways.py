"""Gateways outside their subnet: guests reach them on their link."""

from __future__ import annotations

import msgspec
import pytest

from kilonova.hosts.messages import WiredNetwork, WiredSubnet
from tests.virt.network_support import Fabric, eventually, network, port, with_ports

_IPV6_CIDR = "2001:db8:1::/64"


def test_guest_reaches_a_gateway_outside_its_subnet_and_a_neighbour_network_behind_it(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.2.0.5")
    one, two = network(gateway="192.168.77.1"), network("10.2.0.0/24")
    one = with_ports(one, a, routed=[("10.2.0.0/24", two.id)])
    two = with_ports(two, b, routed=[("10.1.0.0/24", one.id)])
    host.apply(one, two)
    first, second = host.start_guest(one, a), host.start_guest(two, b)
    assert first.dhcp() == "10.1.0.5 24 mtu=1450 dns= router=192.168.77.1"
    second.dhcp()
    routes = first.execute("ip", "route").splitlines()
    assert [line.split(" dev ")[0].strip() for line in routes if "10.1.0.0" not in line] == [
        "default via 192.168.77.1",
        "169.254.169.254 via 192.168.77.1",
        "192.168.77.1",
    ]
    assert first.reaches("192.168.77.1")
    assert first.reaches("10.2.0.5")
    assert second.reaches("10.1.0.5")
    assert f'"uuid":"{a.guest_id}"' in first.get_metadata("/openstack/latest/meta_data.json")


def test_gateway_may_move_out_of_the_subnet_and_back(fabric: Fabric) -> None:
    host = fabric.host()
    a = port("10.1.0.5")
    inside = with_ports(network(), a)
    subnet = msgspec.structs.replace(inside.subnets[0], gateway="192.168.77.1", held=["192.168.77.1"])
    outside = msgspec.structs.replace(inside, subnets=[subnet])
    host.apply(inside)
    guest = host.start_guest(inside, a)
    for plan, gateway in ((outside, "192.168.77.1"), (inside, "10.1.0.1"), (outside, "192.168.77.1")):
        host.apply(plan)
        assert guest.dhcp().endswith(f"router={gateway}")
        assert guest.reaches(gateway)
        guest.execute("ip", "addr", "flush", "dev", "eth0")


def test_gateway_may_be_an_address_of_another_subnet_of_the_network(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.2.0.5")
    one = network(gateway="10.2.0.1")
    other = WiredSubnet(id="other", cidr="10.2.0.0/24", gateway="10.2.0.1", held=["10.2.0.1"])
    one = with_ports(msgspec.structs.replace(one, subnets=[*one.subnets, other]), a, b)
    first, second = host.start_guests(one, a, b)
    assert first.reaches("10.2.0.1")
    assert second.reaches("10.2.0.1")
    assert first.reaches("10.2.0.5")


@pytest.mark.parametrize("gateway", ["2001:db8:77::1", "fe80::1"])
def test_host_answers_for_an_ipv6_gateway_outside_its_subnet(fabric: Fabric, gateway: str) -> None:
    host = fabric.host()
    subnet = WiredSubnet(id="s", cidr=_IPV6_CIDR, gateway=gateway, held=[gateway], mode="dhcpv6-stateful")
    a = port("2001:db8:1::77", secured=False)
    one: WiredNetwork = with_ports(msgspec.structs.replace(network(), subnets=[subnet]), a)
    host.apply(one)
    host.apply(with_ports(one, a, mtu=1400))  # a second time, with the addresses in place
    guest = host.start_guest(one, a)
    guest.wait_for_link()
    guest.execute("ip", "addr", "add", "2001:db8:1::77/64", "dev", "eth0", "nodad")
    guest.execute("ip", "route", "replace", f"{gateway}/128", "dev", "eth0")
    assert eventually(lambda: guest.ping(f"{gateway}%eth0" if gateway.startswith("fe80") else gateway, "-6"))
    assert eventually(lambda: "default" in guest.execute("ip", "-6", "route", "show", "proto", "ra"))


def test_guest_in_an_ipv6_subnet_without_gateway_gets_its_address(fabric: Fabric) -> None:
    host = fabric.host()
    a = port("2001:db8:1::77", secured=False)
    subnet = WiredSubnet(id="s", cidr=_IPV6_CIDR, mode="slaac")
    one = with_ports(msgspec.structs.replace(network(), subnets=[subnet]), a)
    host.apply(one)
    guest = host.start_guest(one, a)
    guest.wait_for_link()
    assert eventually(lambda: "inet6 2001:db8:1:" in guest.execute("ip", "-6", "addr", "show", "dev", "eth0"))
    assert "default" not in guest.execute("ip", "-6", "route", "show", "proto", "ra")
