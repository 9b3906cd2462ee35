"""Networks are made once, mended when broken, kept over restarts, and gone when nobody wants them."""

from __future__ import annotations

import os
import signal
import time

import msgspec

from tests.virt.network_hosts import NAMES, Fabric, Host, network, port, soon, with_ports


def test_what_is_there_is_left_alone_and_what_is_gone_is_made_again(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    one = with_ports(network(nat=True), a, b, peers=["10.99.0.200"], floating=[("10.99.0.201", "10.1.0.5")])
    host.apply(one)
    first, second = host.guest(one, a), host.guest(one, b)
    first.dhcp()
    second.dhcp()
    before = _state(host)
    host.apply(one)
    assert _state(host) == before
    # A plan that was read before does not count.
    host.apply(read_at=time.time() - 60)
    assert _state(host) == before
    host.do("ip", "link", "del", NAMES.bridge(one.id))
    host.apply(one)
    assert first.reaches("10.1.0.6")
    os.kill(int(host.servers()[0]), signal.SIGKILL)
    assert soon(lambda: not host.servers())
    host.apply(one)
    assert first.dhcp().startswith("10.1.0.5 ")
    # What was in the namespace goes on without its name, and must not be taken for what there shall be.
    host.do("ip", "netns", "del", NAMES.space(one.id))
    host.apply(one)
    assert len(host.servers()) == 1
    assert first.dhcp().startswith("10.1.0.5 ")
    assert "200 OK" in first.asks("/openstack")


def test_the_agent_goes_on_where_it_was(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    one = with_ports(network(nat=True), a, b)
    host.apply(one)
    first, second = host.guest(one, a), host.guest(one, b)
    first.dhcp()
    second.dhcp()
    before = _state(host)
    host.kill()
    assert first.reaches("10.1.0.6")
    assert first.dhcp().startswith("10.1.0.5 ")
    host.start()
    # From what it kept, before anybody tells it anything.
    assert soon(lambda: host.ask("wired", f"{a.id} {b.id}") == [1450])
    assert _state(host) == before
    assert "200 OK" in first.asks("/openstack") or "404" in first.asks("/openstack")
    host.apply(with_ports(one, a))
    assert not first.ping("10.1.0.6")


def test_after_a_power_cut_the_host_waits_to_be_told(fabric: Fabric) -> None:
    host = fabric.host()
    a = port("10.1.0.5")
    one = with_ports(network(nat=True, floating=[("10.99.0.201", "10.1.0.5")]), a)
    host.apply(one)
    host.kill()
    for server in host.servers():
        os.kill(int(server), signal.SIGKILL)
    host.do("ip", "netns", "del", NAMES.space(one.id))
    host.do("ip", "link", "del", NAMES.bridge(one.id))
    host.do("nft", "flush", "ruleset")
    host.start()
    assert "has no network" in host.ask("wired", a.id)["error"]
    assert host.namespaces() == []
    host.apply(one)
    assert host.guest(one, a).dhcp().startswith("10.1.0.5 ")


def test_nothing_is_left_when_the_last_guest_goes(fabric: Fabric) -> None:
    host = fabric.host()
    bare = host.interfaces(), host.do("nft", "list", "ruleset"), host.do("ip", "route"), host.do("ip", "-4", "addr")
    a, b = port("10.1.0.5"), port("10.2.0.5")
    one, two = network(nat=True, floating=[("10.99.0.201", "10.1.0.5")]), network("10.2.0.0/24")
    one = with_ports(one, a, routed=[("10.2.0.0/24", two.id)], peers=["10.99.0.200"])
    two = with_ports(two, b, routed=[("10.1.0.0/24", one.id)], peers=["10.99.0.200"])
    host.apply(one, two)
    guest = host.guest(one, a)
    guest.dhcp()
    assert len(host.namespaces()) == 2
    assert len(host.servers()) == 2
    guest.end()
    host.apply()
    left = host.interfaces(), host.do("nft", "list", "ruleset"), host.do("ip", "route"), host.do("ip", "-4", "addr")
    assert left == bare
    assert host.namespaces() == []
    assert host.servers() == []
    assert host.do("ip", "neigh", "show", "proxy") == ""
    assert [file.name for file in (host.directory / "networks").iterdir()] == ["plan"]


def test_a_network_that_cannot_be_made_hinders_no_other(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.2.0.5")
    one, two = with_ports(network(), a), with_ports(network("10.2.0.0/24"), b)
    # Somebody else has the name of its bridge.
    host.do("ip", "link", "add", NAMES.gate(one.id), "type", "vxlan", "id", "77", "dstport", "4790")
    host.do("ip", "link", "add", NAMES.bridge(one.id), "type", "vxlan", "id", "78", "dstport", "4790")
    said = host.tell(one, two)
    assert isinstance(said, dict)
    assert host.ask("wired", b.id) == [1450]
    assert "has no network" in host.ask("wired", a.id)["error"]
    # It is tried again without being told.
    host.do("ip", "link", "del", NAMES.gate(one.id))
    host.do("ip", "link", "del", NAMES.bridge(one.id))
    assert soon(lambda: host.ask("wired", a.id) == [1450])


def test_a_changed_network_changes_what_there_is(fabric: Fabric) -> None:
    host = fabric.host()
    a = port("10.1.0.5")
    one = with_ports(network(), a)
    host.apply(one)
    guest = host.guest(one, a)
    assert guest.dhcp() == "10.1.0.5 24 mtu=1450 dns= router=10.1.0.1"
    subnet = msgspec.structs.replace(one.subnets[0], gateway="10.1.0.254", held=["10.1.0.254"], dns=["10.1.0.9"])
    a = msgspec.structs.replace(a, addresses=["10.1.0.55"])
    host.apply(msgspec.structs.replace(one, subnets=[subnet], ports=[a], mtu=1300))
    assert guest.dhcp() == "10.1.0.55 24 mtu=1300 dns=10.1.0.9 router=10.1.0.254"
    assert guest.reaches("10.1.0.254")
    assert not guest.ping("10.1.0.1")


def _state(host: Host) -> tuple[object, ...]:
    """Numbers of interfaces and processes tell whether something was made anew."""
    return (
        host.do("ip", "-o", "link"),
        host.do("ip", "-4", "-o", "addr"),
        host.do("ip", "route"),
        host.do("sh", "-c", "for n in $(ls /run/netns); do ip -n $n -4 -o addr; ip -n $n route; done"),
        host.servers(),
        host.do("nft", "list", "ruleset"),
    )
