"""IPv6: router advertisements, DHCPv6 and routing."""

from __future__ import annotations

import ipaddress
import json
import sys
from typing import Any

import msgspec
import pytest

from kilonova.hosts.messages import WiredNetwork, WiredPort, WiredSubnet
from kilonova.network.addresses import eui64_address
from tests.virt.network_support import Fabric, eventually, network, port, with_ports

_DNS = "2001:db8:53::53"
# Requests a router advertisement, then an address and options by DHCPv6, and prints the results.
_SOLICIT_SCRIPT = """
import json, socket, struct, sys

def options(data):
    while len(data) >= 4:
        kind, length = struct.unpack_from("!HH", data)
        yield kind, data[4:4 + length]
        data = data[4 + length:]

def request(message):
    client = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    client.bind(("::", 546))
    client.settimeout(2)
    for _ in range(15):
        client.sendto(message, ("ff02::1:2", 547, 0, index))
        try:
            # A repeated request may get two replies.
            while (reply := client.recv(1500))[1:4] != message[1:4]:
                pass
            return dict(options(reply[4:]))
        except TimeoutError:
            pass
    return {}

index = socket.if_nametoindex("eth0")
result = {}
radv = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
radv.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
radv.settimeout(2)
for _ in range(30):
    radv.sendto(bytes([133, 0, 0, 0, 0, 0, 0, 0]), ("ff02::2", 0, 0, index))
    try:
        advertisement = b""
        while advertisement[:1] != bytes([134]):
            advertisement = radv.recv(1500)
        break
    except TimeoutError:
        pass
else:
    sys.exit("no advertisement")
result["managed"], result["other"] = bool(advertisement[5] & 0x80), bool(advertisement[5] & 0x40)
result["lifetime"] = struct.unpack_from("!H", advertisement, 6)[0]
rest = advertisement[16:]
while rest:
    if rest[0] == 3:
        result["autonomous"] = bool(rest[3] & 0x40)
        result["prefix"] = socket.inet_ntop(socket.AF_INET6, rest[16:32]) + f"/{rest[2]}"
    if rest[0] == 5:
        result["mtu"] = struct.unpack_from("!I", rest, 4)[0]
    rest = rest[8 * rest[1]:]
identity = struct.pack("!HHHH", 1, 10, 3, 1) + bytes.fromhex(sys.argv[1].replace(":", ""))
if sys.argv[2] != "slaac":
    found = request(bytes([11, 7, 7, 7]) + identity + struct.pack("!HHH", 6, 2, 23))
    result["dns"] = socket.inet_ntop(socket.AF_INET6, found[23][:16]) if 23 in found else ""
    found = request(bytes([1, 7, 7, 8]) + identity + struct.pack("!HHIII", 3, 12, 1, 0, 0))
    leased = dict(options(found.get(3, b"")[12:])).get(5)
    result["leased"] = socket.inet_ntop(socket.AF_INET6, leased[:16]) if leased else ""
print(json.dumps(result))
"""

_MODES: dict[str, dict[str, Any]] = {
    "slaac": {"managed": False, "other": False, "autonomous": True},
    "dhcpv6-stateless": {"managed": False, "other": True, "autonomous": True, "dns": _DNS, "leased": ""},
    "dhcpv6-stateful": {"managed": True, "other": True, "autonomous": False, "dns": _DNS, "leased": "2001:db8:1::77"},
}


@pytest.mark.parametrize("mode", _MODES)
def test_advertisements_and_dhcpv6_of_each_mode(fabric: Fabric, mode: str) -> None:
    host = fabric.host()
    a = _port(mode)
    one = with_ports(_network(mode=mode), a)
    host.apply(one)
    guest = host.start_guest(one, a)
    guest.wait_for_link()
    printed = json.loads(guest.execute(sys.executable, "-c", _SOLICIT_SCRIPT, a.mac, mode))
    common = {"prefix": "2001:db8:1::/64", "mtu": 1400, "lifetime": 1800}
    assert printed == {**common, **_MODES[mode]}
    slaac_address = f"{_eui64_address(a.mac)}/64"
    if _MODES[mode]["autonomous"]:
        assert eventually(lambda: slaac_address in guest.execute("ip", "-6", "addr"))
    else:
        assert slaac_address not in guest.execute("ip", "-6", "addr")
        guest.execute("ip", "addr", "add", "2001:db8:1::77/64", "dev", "eth0", "nodad")
    assert eventually(lambda: "default" in guest.execute("ip", "-6", "route", "show", "proto", "ra"))
    assert eventually(lambda: guest.ping("2001:db8:1::1", "-6"))


def test_no_default_route_if_the_gateway_is_a_guest(fabric: Fabric) -> None:
    host = fabric.host()
    a = _port("slaac")
    held = {"gateway": "2001:db8:1::fe", "held": ["2001:db8:1::2"]}
    one = with_ports(_network(mode="slaac", **held), a)
    host.apply(one)
    guest = host.start_guest(one, a)
    guest.wait_for_link()
    assert json.loads(guest.execute(sys.executable, "-c", _SOLICIT_SCRIPT, a.mac, "slaac"))["lifetime"] == 0


def test_router_between_networks_and_static_routes(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = _port("slaac"), port("2001:db8:2::9", secured=False)
    one, two = _network(mode="slaac"), _network("2001:db8:2::/64", mode="dhcpv6-stateful")
    routes = [("2001:db8:7::/48", "2001:db8:2::9", two.id)]
    one = with_ports(one, a, routed=[("2001:db8:2::/64", two.id)], routes=routes)
    two = with_ports(two, b, routed=[("2001:db8:1::/64", one.id)], routes=routes)
    host.apply(one, two)
    first, second = host.start_guest(one, a), host.start_guest(two, b)
    second.execute("ip", "addr", "add", "2001:db8:2::9/64", "dev", "eth0", "nodad")
    second.execute("ip", "addr", "add", "2001:db8:7::1/128", "dev", "lo")
    assert eventually(lambda: first.ping("2001:db8:2::9", "-6"))
    assert eventually(lambda: first.ping("2001:db8:7::1", "-6"))
    host.apply(*(msgspec.structs.replace(each, routes=[]) for each in (one, two)))
    assert not first.ping("2001:db8:7::1", "-6")
    assert eventually(lambda: first.ping("2001:db8:2::9", "-6"))


def _network(cidr: str = "2001:db8:1::/64", **fields: Any) -> WiredNetwork:
    gateway = str(ipaddress.ip_network(cidr)[1])
    subnet = WiredSubnet(**{"id": "s", "cidr": cidr, "gateway": gateway, "held": [gateway], "dns": [_DNS], **fields})
    return msgspec.structs.replace(network(mtu=1400), subnets=[subnet])


def _port(mode: str) -> WiredPort:
    made = port("2001:db8:1::77")
    return made if mode == "dhcpv6-stateful" else msgspec.structs.replace(made, addresses=[_eui64_address(made.mac)])


def _eui64_address(mac: str) -> str:
    return str(eui64_address(ipaddress.IPv6Network("2001:db8:1::/64"), mac))
