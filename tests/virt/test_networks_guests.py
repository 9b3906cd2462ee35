"""Connectivity of guests on one host and on two."""

from __future__ import annotations

import ipaddress
import sys

import msgspec

from kilonova.hosts.messages import WiredSubnet
from kilonova.network.addresses import eui64_address
from tests.virt.network_support import Fabric, eventually, network, port, with_ports

# Requests an address by DHCPv6 and prints the offered one.
_SOLICIT_SCRIPT = """
import socket, struct, sys
identity = struct.pack("!HHHH", 1, 10, 3, 1) + bytes.fromhex(sys.argv[1].replace(":", ""))
solicit = bytes([1, 7, 7, 7]) + identity + struct.pack("!HHIII", 3, 12, 1, 0, 0)
client = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
client.bind(("::", 546))
for _ in range(60):
    client.sendto(solicit, ("ff02::1:2", 547, 0, socket.if_nametoindex("eth0")))
    client.settimeout(1)
    try:
        reply = client.recv(1500)
        break
    except TimeoutError:
        pass
at = reply.index(struct.pack("!HH", 5, 24)) + 4
print(socket.inet_ntop(socket.AF_INET6, reply[at:at + 16]))
"""


def test_guest_has_its_ports_address_and_reaches_only_its_network(fabric: Fabric) -> None:
    host = fabric.host()
    a, b, c = port("10.1.0.5"), port("10.1.0.6"), port("10.2.0.5")
    one = with_ports(network("10.1.0.0/24", mtu=1400, subnet={"dns": ["9.9.9.9"]}), a, b)
    two = with_ports(network("10.2.0.0/24"), c)
    host.apply(one, two)
    first, second, third = host.start_guest(one, a), host.start_guest(one, b), host.start_guest(two, c)
    assert first.dhcp() == "10.1.0.5 24 mtu=1400 dns=9.9.9.9 router=10.1.0.1"
    second.dhcp()
    third.dhcp()
    assert first.reaches("10.1.0.6")
    assert first.reaches("10.1.0.1")
    assert not first.ping("10.2.0.5")
    assert host.call("wait", f"{a.id} {c.id}") == [1400, 1450]
    assert "has no network" in host.call("wait", "7d2f0c3e-7d4f-4f0c-8d29-0b7f3f3f9a10")["error"]


def test_network_spans_two_hosts(fabric: Fabric) -> None:
    here, there = fabric.host(), fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    base = network(mtu=1500)
    one = with_ports(base, a, peers=[there.address])
    two = with_ports(base, b, peers=[here.address])
    here.apply(one)
    there.apply(two)
    first, second = here.start_guest(one, a), there.start_guest(two, b)
    # The guest's MTU leaves room for the VXLAN header.
    assert first.dhcp() == "10.1.0.5 24 mtu=1450 dns= router=10.1.0.1"
    assert second.dhcp().startswith("10.1.0.6 ")
    assert first.reaches("10.1.0.6")
    assert second.reaches("10.1.0.5", "-s", "1422")
    # Each guest uses the gateway of its own host.
    assert first.reaches("10.1.0.1")
    assert second.reaches("10.1.0.1")
    here.apply(with_ports(one, a, peers=[]))
    assert not first.ping("10.1.0.6")


def test_migrated_guest_is_reachable_at_its_new_host(fabric: Fabric) -> None:
    here, there = fabric.host(), fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    base = network()
    # During the migration both hosts have the port.
    one, two = with_ports(base, a, b, peers=[there.address]), with_ports(base, b, peers=[here.address])
    here.apply(one)
    there.apply(two)
    first, second = here.start_guest(one, a), here.start_guest(one, b)
    first.dhcp()
    second.dhcp()
    assert first.reaches("10.1.0.6")
    second.end()
    moved = there.start_guest(two, b)
    moved.set_address("10.1.0.6/24", "10.1.0.1")
    assert moved.reaches("10.1.0.5")
    assert moved.reaches("10.1.0.1")
    here.apply(with_ports(one, a, peers=[there.address]))
    assert first.reaches("10.1.0.6")


def test_router_connects_networks_across_hosts(fabric: Fabric) -> None:
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
    first, second, third = here.start_guest(ones, a), there.start_guest(twos, b), here.start_guest(twos, c)
    for guest in (first, second, third):
        guest.dhcp()
    assert first.reaches("10.2.0.6")
    assert first.reaches("10.2.0.5")
    assert second.reaches("10.1.0.5")
    assert first.reaches("10.2.0.1")
    # Unreachable after the router is removed.
    here.apply(with_ports(one, a, routed=[]), with_ports(two, c, routed=[]))
    assert not first.ping("10.2.0.6")


def test_ipv6_addresses_by_slaac(fabric: Fabric) -> None:
    host = fabric.host()
    subnet = WiredSubnet(id="s", cidr="2001:db8:1::/64", gateway="2001:db8:1::1", held=["2001:db8:1::1"], mode="slaac")
    a, b = port("10.1.0.5"), port("10.1.0.6")
    a = msgspec.structs.replace(a, addresses=["10.1.0.5", _eui64_address(a.mac)])
    b = msgspec.structs.replace(b, addresses=["10.1.0.6", _eui64_address(b.mac)])
    base = network()
    one = with_ports(msgspec.structs.replace(base, subnets=[*base.subnets, subnet]), a, b)
    host.apply(one)
    first, second = host.start_guest(one, a), host.start_guest(one, b)
    for guest, guest_port in ((first, a), (second, b)):
        address = guest_port.addresses[1]
        assert eventually(lambda guest=guest, address=address: address in guest.execute("ip", "-6", "addr"))
    assert first.reaches(b.addresses[1], "-6")
    assert first.reaches("2001:db8:1::1", "-6")


def test_ipv6_addresses_by_dhcpv6(fabric: Fabric) -> None:
    host = fabric.host()
    a = port("2001:db8:1::77")
    subnet = WiredSubnet(
        id="s", cidr="2001:db8:1::/64", gateway="2001:db8:1::1", held=["2001:db8:1::1"], mode="dhcpv6-stateful"
    )
    one = with_ports(msgspec.structs.replace(network(), subnets=[subnet]), a)
    host.apply(one)
    guest = host.start_guest(one, a)
    guest.wait_for_link()
    assert guest.execute(sys.executable, "-c", _SOLICIT_SCRIPT, a.mac).strip() == "2001:db8:1::77"


def test_subnet_without_gateway_has_dhcp_and_metadata(fabric: Fabric) -> None:
    host = fabric.host()
    a = port("10.1.0.5", dhcp_options={"mtu": "1300", "nonsense": "x", "router": "10.1.0.9\ndhcp-option=6,1.1.1.1"})
    one = with_ports(network(gateway=""), a)
    host.apply(one)
    guest = host.start_guest(one, a)
    assert guest.dhcp() == "10.1.0.5 24 mtu=1300 dns= router="
    assert f'"uuid":"{a.guest_id}"' in guest.get_metadata("/openstack/latest/meta_data.json")


def test_metadata_of_each_guest(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    c = port("10.1.0.5")
    one, two = with_ports(network(), a, b), with_ports(network(), c)
    host.apply(one, two)
    first, second, third = host.start_guest(one, a), host.start_guest(one, b), host.start_guest(two, c)
    for guest in (first, second, third):
        guest.dhcp()
    path = "/openstack/latest/meta_data.json"
    assert f'"uuid":"{a.guest_id}"' in first.get_metadata(path)
    assert f'"uuid":"{b.guest_id}"' in second.get_metadata(path, "X-Forwarded-For: 10.1.0.5")
    # The same address on another network belongs to another guest.
    assert f'"uuid":"{c.guest_id}"' in third.get_metadata(path)
    assert first.get_metadata("/latest/meta-data/local-ipv4").endswith("\r\n\r\n10.1.0.5")
    assert "404 Not Found" in first.get_metadata("/nothing")
    assert "405 Method Not Allowed" in first.send_metadata_request(b"DELETE / HTTP/1.1\r\n\r\n")
    assert "400 Bad Request" in first.send_metadata_request(b"\x00\xff nonsense\r\n\r\n")
    assert "400 Bad Request" in first.send_metadata_request(b"GET / HTTP/1.1\r\nx: " + b"y" * 20000)
    assert (
        first.send_metadata_request(b"GET / HTTP/1.1\r\n\r\nHEAD /latest HTTP/1.1\r\nConnection: close\r\n\r\n").count(
            "200 OK"
        )
        == 2
    )


def _eui64_address(mac: str) -> str:
    return str(eui64_address(ipaddress.IPv6Network("2001:db8:1::/64"), mac))
