"""Static routes of routers and host routes of subnets."""

from __future__ import annotations

import msgspec

from tests.virt.network_support import Fabric, Guest, eventually, network, port, with_ports


def test_static_routes_of_a_router(fabric: Fabric) -> None:
    here, there = fabric.host(), fabric.host()
    a, near = port("10.1.0.5"), port("10.1.0.9", secured=False)
    far, farther = port("10.2.0.9", secured=False), port("10.2.0.8", secured=False)
    one, two = network("10.1.0.0/24", nat=True), network("10.2.0.0/24")
    next_hops = [("10.7.0.0/16", "10.2.0.9"), ("10.7.9.0/24", "10.2.0.8"), ("0.0.0.0/0", "10.1.0.9")]
    routes = [(to, hop, one.id if hop.startswith("10.1.") else two.id) for to, hop in next_hops]
    # A route that the kernel refuses does not affect others.
    routes.insert(0, ("10.6.0.0/16", "10.1.0.1", one.id))
    one = msgspec.structs.replace(one, routed=[("10.2.0.0/24", two.id)], routes=routes)
    two = msgspec.structs.replace(two, routed=[("10.1.0.0/24", one.id)], routes=routes)
    ones = with_ports(one, a, near, peers=[there.address])
    twos = with_ports(two, farther, neighbours=[(far.mac, "10.2.0.9")], peers=[there.address])
    here.apply(ones, twos)
    neighbours = [(a.mac, "10.1.0.5"), (near.mac, "10.1.0.9")]
    there.apply(
        with_ports(one, neighbours=neighbours, peers=[here.address]), with_ports(two, far, peers=[here.address])
    )
    guest, beside = here.start_guest(ones, a), here.start_guest(ones, near)
    other, others = there.start_guest(twos, far), here.start_guest(twos, farther)
    for each, beyond in ((beside, "198.51.100.7"), (other, "10.7.0.1"), (others, "10.7.9.1")):
        _add_loopback_addresses(each, beyond)
    guest.dhcp()
    assert eventually(lambda: guest.ping("10.7.0.1"))
    assert eventually(lambda: guest.ping("10.7.9.1"))
    # Preferred to the external default route.
    assert eventually(lambda: guest.ping("198.51.100.7"))
    assert not guest.ping(fabric.address)
    fewer = routes[1:2]
    here.apply(*(msgspec.structs.replace(each, routes=fewer) for each in (ones, twos)))
    assert eventually(lambda: guest.ping("10.7.0.1"))
    assert eventually(lambda: guest.ping(fabric.address))
    assert not guest.ping("10.7.9.1")
    here.apply(*(msgspec.structs.replace(each, routes=[]) for each in (ones, twos)))
    assert not guest.ping("10.7.0.1")


def test_several_next_hops_share_the_traffic(fabric: Fabric) -> None:
    host = fabric.host()
    a, b, c = port("10.1.0.5"), port("10.1.0.8", secured=False), port("10.1.0.9", secured=False)
    one = network()
    routes = [("10.7.0.0/16", hop, one.id) for hop in ("10.1.0.8", "10.1.0.9")]
    one = with_ports(one, a, b, c, routes=routes)
    host.apply(one)
    guest, first, second = (host.start_guest(one, each) for each in (a, b, c))
    guest.dhcp()
    hops = [f"10.7.0.{number}" for number in range(1, 21)]
    for each in (first, second):
        _add_loopback_addresses(each, *hops)
        each.execute("nft", _COUNTER)
    for hop in hops:
        assert eventually(lambda hop=hop: guest.ping(hop)), hop
    for each in (first, second):
        assert "packets 0 " not in each.execute("nft", "list", "ruleset")


def test_host_routes_of_a_subnet_reach_guests(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6", secured=False)
    one = with_ports(network(subnet={"routes": [("10.8.0.0/16", "10.1.0.6")]}), a, b)
    host.apply(one)
    first, second = host.start_guest(one, a), host.start_guest(one, b)
    _add_loopback_addresses(second, "10.8.0.1")
    first.dhcp()
    assert "10.8.0.0/16 via 10.1.0.6 dev eth0" in first.execute("ip", "route")
    assert eventually(lambda: first.ping("10.8.0.1"))


_COUNTER = """
table ip seen {
    chain seen {
        type filter hook input priority 0
        ip daddr 10.7.0.0/16 icmp type echo-request counter
    }
}
"""


def _add_loopback_addresses(guest: Guest, *addresses: str) -> None:
    guest.dhcp()
    for address in addresses:
        guest.execute("ip", "addr", "add", f"{address}/32", "dev", "lo")
