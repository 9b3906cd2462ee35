"""IPv6 in the ways that subnets have: what guests are told by advertisements and by DHCPv6, and where it leads."""

from __future__ import annotations

import ipaddress
import json
import sys
from typing import Any

import msgspec
import pytest

from kilonova.hosts.messages import WiredNetwork, WiredPort, WiredSubnet
from kilonova.network.addresses import from_mac
from tests.virt.network_hosts import Fabric, network, port, soon, with_ports

_DNS = "2001:db8:53::53"
# Asks for an advertisement, and then by DHCPv6 for an address and for what else there is; writes what it was told.
_ASK = """
import json, socket, struct, sys

def options(data):
    while len(data) >= 4:
        kind, length = struct.unpack_from("!HH", data)
        yield kind, data[4:4 + length]
        data = data[4 + length:]

def ask(message):
    asking = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    asking.bind(("::", 546))
    asking.settimeout(2)
    for _ in range(15):
        asking.sendto(message, ("ff02::1:2", 547, 0, index))
        try:
            # What was asked before may be answered twice, as it was asked again where the answer was late.
            while (said := asking.recv(1500))[1:4] != message[1:4]:
                pass
            return dict(options(said[4:]))
        except TimeoutError:
            pass
    return {}

index = socket.if_nametoindex("eth0")
told = {}
radv = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
radv.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
radv.settimeout(2)
for _ in range(30):
    radv.sendto(bytes([133, 0, 0, 0, 0, 0, 0, 0]), ("ff02::2", 0, 0, index))
    try:
        said = b""
        while said[:1] != bytes([134]):
            said = radv.recv(1500)
        break
    except TimeoutError:
        pass
else:
    sys.exit("no advertisement")
told["managed"], told["other"] = bool(said[5] & 0x80), bool(said[5] & 0x40)
told["lifetime"] = struct.unpack_from("!H", said, 6)[0]
rest = said[16:]
while rest:
    if rest[0] == 3:
        told["autonomous"] = bool(rest[3] & 0x40)
        told["prefix"] = socket.inet_ntop(socket.AF_INET6, rest[16:32]) + f"/{rest[2]}"
    if rest[0] == 5:
        told["mtu"] = struct.unpack_from("!I", rest, 4)[0]
    rest = rest[8 * rest[1]:]
identity = struct.pack("!HHHH", 1, 10, 3, 1) + bytes.fromhex(sys.argv[1].replace(":", ""))
if sys.argv[2] != "slaac":
    found = ask(bytes([11, 7, 7, 7]) + identity + struct.pack("!HHH", 6, 2, 23))
    told["dns"] = socket.inet_ntop(socket.AF_INET6, found[23][:16]) if 23 in found else ""
    found = ask(bytes([1, 7, 7, 8]) + identity + struct.pack("!HHIII", 3, 12, 1, 0, 0))
    leased = dict(options(found.get(3, b"")[12:])).get(5)
    told["leased"] = socket.inet_ntop(socket.AF_INET6, leased[:16]) if leased else ""
print(json.dumps(told))
"""

_MODES: dict[str, dict[str, Any]] = {
    "slaac": {"managed": False, "other": False, "autonomous": True},
    "dhcpv6-stateless": {"managed": False, "other": True, "autonomous": True, "dns": _DNS, "leased": ""},
    "dhcpv6-stateful": {"managed": True, "other": True, "autonomous": False, "dns": _DNS, "leased": "2001:db8:1::77"},
}


@pytest.mark.parametrize("mode", _MODES)
def test_each_mode_tells_guests_what_it_is_for(fabric: Fabric, mode: str) -> None:
    host = fabric.host()
    a = _port(mode)
    one = with_ports(_network(mode=mode), a)
    host.apply(one)
    guest = host.guest(one, a)
    guest.wait_for_link()
    told = json.loads(guest.do(sys.executable, "-c", _ASK, a.mac, mode))
    common = {"prefix": "2001:db8:1::/64", "mtu": 1400, "lifetime": 1800}
    assert told == {**common, **_MODES[mode]}
    by_itself = f"{_from_mac(a.mac)}/64"
    if _MODES[mode]["autonomous"]:
        assert soon(lambda: by_itself in guest.do("ip", "-6", "addr"))
    else:
        assert by_itself not in guest.do("ip", "-6", "addr")
        guest.do("ip", "addr", "add", "2001:db8:1::77/64", "dev", "eth0", "nodad")
    assert soon(lambda: "default" in guest.do("ip", "-6", "route", "show", "proto", "ra"))
    assert soon(lambda: guest.ping("2001:db8:1::1", "-6"))


def test_guests_whose_gateway_is_another_guest_are_not_led_here(fabric: Fabric) -> None:
    host = fabric.host()
    a = _port("slaac")
    held = {"gateway": "2001:db8:1::fe", "held": ["2001:db8:1::2"]}
    one = with_ports(_network(mode="slaac", **held), a)
    host.apply(one)
    guest = host.guest(one, a)
    guest.wait_for_link()
    assert json.loads(guest.do(sys.executable, "-c", _ASK, a.mac, "slaac"))["lifetime"] == 0


def test_routers_lead_between_networks_and_to_next_hops(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = _port("slaac"), port("2001:db8:2::9", secured=False)
    one, two = _network(mode="slaac"), _network("2001:db8:2::/64", mode="dhcpv6-stateful")
    routes = [("2001:db8:7::/48", "2001:db8:2::9", two.id)]
    one = with_ports(one, a, routed=[("2001:db8:2::/64", two.id)], routes=routes)
    two = with_ports(two, b, routed=[("2001:db8:1::/64", one.id)], routes=routes)
    host.apply(one, two)
    first, second = host.guest(one, a), host.guest(two, b)
    second.do("ip", "addr", "add", "2001:db8:2::9/64", "dev", "eth0", "nodad")
    second.do("ip", "addr", "add", "2001:db8:7::1/128", "dev", "lo")
    assert soon(lambda: first.ping("2001:db8:2::9", "-6"))
    assert soon(lambda: first.ping("2001:db8:7::1", "-6"))
    host.apply(*(msgspec.structs.replace(each, routes=[]) for each in (one, two)))
    assert not first.ping("2001:db8:7::1", "-6")
    assert soon(lambda: first.ping("2001:db8:2::9", "-6"))


def _network(cidr: str = "2001:db8:1::/64", **said: Any) -> WiredNetwork:
    gateway = str(ipaddress.ip_network(cidr)[1])
    subnet = WiredSubnet(**{"id": "s", "cidr": cidr, "gateway": gateway, "held": [gateway], "dns": [_DNS], **said})
    return msgspec.structs.replace(network(mtu=1400), subnets=[subnet])


def _port(mode: str) -> WiredPort:
    made = port("2001:db8:1::77")
    return made if mode == "dhcpv6-stateful" else msgspec.structs.replace(made, addresses=[_from_mac(made.mac)])


def _from_mac(mac: str) -> str:
    return str(from_mac(ipaddress.IPv6Network("2001:db8:1::/64"), mac))
