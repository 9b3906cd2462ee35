"""Guests on one host and on two: the addresses of their ports, each other, and nobody else."""

from __future__ import annotations

import ipaddress
import sys

import msgspec

from kilonova.hosts.messages import WiredSubnet
from kilonova.network.addresses import from_mac
from tests.virt.network_hosts import Fabric, network, port, soon, with_ports

# Asks for an address by DHCPv6 and writes the one that is offered.
_SOLICIT = """
import socket, struct, sys
identity = struct.pack("!HHHH", 1, 10, 3, 1) + bytes.fromhex(sys.argv[1].replace(":", ""))
solicit = bytes([1, 7, 7, 7]) + identity + struct.pack("!HHIII", 3, 12, 1, 0, 0)
asking = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
asking.bind(("::", 546))
for _ in range(60):
    asking.sendto(solicit, ("ff02::1:2", 547, 0, socket.if_nametoindex("eth0")))
    asking.settimeout(1)
    try:
        said = asking.recv(1500)
        break
    except TimeoutError:
        pass
at = said.index(struct.pack("!HH", 5, 24)) + 4
print(socket.inet_ntop(socket.AF_INET6, said[at:at + 16]))
"""


def test_a_guest_gets_the_address_of_its_port_and_reaches_its_network_only(fabric: Fabric) -> None:
    host = fabric.host()
    a, b, c = port("10.1.0.5"), port("10.1.0.6"), port("10.2.0.5")
    one = with_ports(network("10.1.0.0/24", mtu=1400, subnet={"dns": ["9.9.9.9"]}), a, b)
    two = with_ports(network("10.2.0.0/24"), c)
    host.apply(one, two)
    first, second, third = host.guest(one, a), host.guest(one, b), host.guest(two, c)
    assert first.dhcp() == "10.1.0.5 24 mtu=1400 dns=9.9.9.9 router=10.1.0.1"
    second.dhcp()
    third.dhcp()
    assert first.reaches("10.1.0.6")
    assert first.reaches("10.1.0.1")
    assert not first.ping("10.2.0.5")
    assert host.ask("wired", f"{a.id} {c.id}") == [1400, 1450]
    assert "has no network" in host.ask("wired", "7d2f0c3e-7d4f-4f0c-8d29-0b7f3f3f9a10")["error"]


def test_guests_of_two_hosts_are_on_one_network(fabric: Fabric) -> None:
    here, there = fabric.host(), fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    base = network(mtu=1500)
    one = with_ports(base, a, peers=[there.address])
    two = with_ports(base, b, peers=[here.address])
    here.apply(one)
    there.apply(two)
    first, second = here.guest(one, a), there.guest(two, b)
    # What VXLAN needs of a packet's room is not the guest's.
    assert first.dhcp() == "10.1.0.5 24 mtu=1450 dns= router=10.1.0.1"
    assert second.dhcp().startswith("10.1.0.6 ")
    assert first.reaches("10.1.0.6")
    assert second.reaches("10.1.0.5", "-s", "1422")
    # Each has the gateway on its own host.
    assert first.reaches("10.1.0.1")
    assert second.reaches("10.1.0.1")
    here.apply(with_ports(one, a, peers=[]))
    assert not first.ping("10.1.0.6")


def test_a_guest_that_moves_is_reached_at_its_new_host(fabric: Fabric) -> None:
    here, there = fabric.host(), fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    base = network()
    # While it moves both have its port.
    one, two = with_ports(base, a, b, peers=[there.address]), with_ports(base, b, peers=[here.address])
    here.apply(one)
    there.apply(two)
    first, second = here.guest(one, a), here.guest(one, b)
    first.dhcp()
    second.dhcp()
    assert first.reaches("10.1.0.6")
    second.end()
    moved = there.guest(two, b)
    moved.address("10.1.0.6/24", "10.1.0.1")
    assert moved.reaches("10.1.0.5")
    assert moved.reaches("10.1.0.1")
    here.apply(with_ports(one, a, peers=[there.address]))
    assert first.reaches("10.1.0.6")


def test_a_router_joins_networks_across_hosts(fabric: Fabric) -> None:
    here, there = fabric.host(), fabric.host()
    a, b, c = port("10.1.0.5"), port("10.2.0.5"), port("10.2.0.6")
    one, two = network("10.1.0.0/24"), network("10.2.0.0/24")
    one = msgspec.structs.replace(one, routed=[("10.2.0.0/24", two.id)])
    two = msgspec.structs.replace(two, routed=[("10.1.0.0/24", one.id)])
    elsewhere = {"peers": [there.address]}
    ones = with_ports(one, a, **elsewhere)
    here.apply(ones, with_ports(two, c, neighbours=[(b.mac, "10.2.0.5")], **elsewhere))
    elsewhere = {"peers": [here.address]}
    twos = with_ports(two, b, neighbours=[(c.mac, "10.2.0.6")], **elsewhere)
    there.apply(with_ports(one, neighbours=[(a.mac, "10.1.0.5")], **elsewhere), twos)
    first, second, third = here.guest(ones, a), there.guest(twos, b), here.guest(twos, c)
    for guest in (first, second, third):
        guest.dhcp()
    assert first.reaches("10.2.0.6")
    assert first.reaches("10.2.0.5")
    assert second.reaches("10.1.0.5")
    assert first.reaches("10.2.0.1")
    # And no longer when the router is gone.
    here.apply(with_ports(one, a, routed=[]), with_ports(two, c, routed=[]))
    assert not first.ping("10.2.0.6")


def test_addresses_of_ipv6_are_told_too(fabric: Fabric) -> None:
    host = fabric.host()
    subnet = WiredSubnet(id="s", cidr="2001:db8:1::/64", gateway="2001:db8:1::1", held=["2001:db8:1::1"], mode="slaac")
    a, b = port("10.1.0.5"), port("10.1.0.6")
    a = msgspec.structs.replace(a, addresses=["10.1.0.5", _from_mac(a.mac)])
    b = msgspec.structs.replace(b, addresses=["10.1.0.6", _from_mac(b.mac)])
    base = network()
    one = with_ports(msgspec.structs.replace(base, subnets=[*base.subnets, subnet]), a, b)
    host.apply(one)
    first, second = host.guest(one, a), host.guest(one, b)
    for guest, held in ((first, a), (second, b)):
        address = held.addresses[1]
        assert soon(lambda guest=guest, address=address: address in guest.do("ip", "-6", "addr"))
    assert first.reaches(b.addresses[1], "-6")
    assert first.reaches("2001:db8:1::1", "-6")


def test_addresses_of_ipv6_are_leased(fabric: Fabric) -> None:
    host = fabric.host()
    a = port("2001:db8:1::77")
    subnet = WiredSubnet(
        id="s", cidr="2001:db8:1::/64", gateway="2001:db8:1::1", held=["2001:db8:1::1"], mode="dhcpv6-stateful"
    )
    one = with_ports(msgspec.structs.replace(network(), subnets=[subnet]), a)
    host.apply(one)
    guest = host.guest(one, a)
    guest.wait_for_link()
    assert guest.do(sys.executable, "-c", _SOLICIT, a.mac).strip() == "2001:db8:1::77"


def test_a_subnet_without_a_gateway_has_dhcp_and_metadata(fabric: Fabric) -> None:
    host = fabric.host()
    a = port("10.1.0.5", dhcp_options={"mtu": "1300", "nonsense": "x", "router": "10.1.0.9\ndhcp-option=6,1.1.1.1"})
    one = with_ports(network(gateway=""), a)
    host.apply(one)
    guest = host.guest(one, a)
    assert guest.dhcp() == "10.1.0.5 24 mtu=1300 dns= router="
    assert f'"uuid":"{a.guest_id}"' in guest.asks("/openstack/latest/meta_data.json")


def test_metadata_tells_each_guest_who_it_is(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    c = port("10.1.0.5")
    one, two = with_ports(network(), a, b), with_ports(network(), c)
    host.apply(one, two)
    first, second, third = host.guest(one, a), host.guest(one, b), host.guest(two, c)
    for guest in (first, second, third):
        guest.dhcp()
    path = "/openstack/latest/meta_data.json"
    assert f'"uuid":"{a.guest_id}"' in first.asks(path)
    assert f'"uuid":"{b.guest_id}"' in second.asks(path, "X-Forwarded-For: 10.1.0.5")
    # The same address on another network is another guest.
    assert f'"uuid":"{c.guest_id}"' in third.asks(path)
    assert first.asks("/latest/meta-data/local-ipv4").endswith("\r\n\r\n10.1.0.5")
    assert "404 Not Found" in first.asks("/nothing")
    assert "405 Method Not Allowed" in first.says(b"DELETE / HTTP/1.1\r\n\r\n")
    assert "400 Bad Request" in first.says(b"\x00\xff nonsense\r\n\r\n")
    assert "400 Bad Request" in first.says(b"GET / HTTP/1.1\r\nx: " + b"y" * 20000)
    assert first.says(b"GET / HTTP/1.1\r\n\r\nHEAD /latest HTTP/1.1\r\nConnection: close\r\n\r\n").count("200 OK") == 2


def _from_mac(mac: str) -> str:
    return str(from_mac(ipaddress.IPv6Network("2001:db8:1::/64"), mac))
