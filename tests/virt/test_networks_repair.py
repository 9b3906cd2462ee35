"""Repair, persistence and removal of networks."""

from __future__ import annotations

import os
import signal
import time

import msgspec

from tests.virt.network_support import NAMES, Fabric, Host, eventually, network, port, with_ports


def test_missing_parts_are_repaired(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    one = with_ports(network(nat=True), a, b, peers=["10.99.0.200"], floating=[("10.99.0.201", "10.1.0.5")])
    host.apply(one)
    first, second = host.start_guest(one, a), host.start_guest(one, b)
    first.dhcp()
    second.dhcp()
    before = _state(host)
    host.apply(one)
    assert _state(host) == before
    # An older plan is ignored.
    host.apply(read_at=time.time() - 60)
    assert _state(host) == before
    host.execute("ip", "link", "del", NAMES.bridge(one.id))
    host.apply(one)
    assert first.reaches("10.1.0.6")
    os.kill(int(host.dnsmasq_pids()[0]), signal.SIGKILL)
    assert eventually(lambda: not host.dnsmasq_pids())
    host.apply(one)
    assert first.dhcp().startswith("10.1.0.5 ")
    # Processes and links continue in the unnamed namespace, and must not count as present.
    host.execute("ip", "netns", "del", NAMES.namespace(one.id))
    host.apply(one)
    assert len(host.dnsmasq_pids()) == 1
    assert first.dhcp().startswith("10.1.0.5 ")
    assert "200 OK" in first.get_metadata("/openstack")


def test_restarted_agent_continues_with_the_stored_plan(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    one = with_ports(network(nat=True), a, b)
    host.apply(one)
    first, second = host.start_guest(one, a), host.start_guest(one, b)
    first.dhcp()
    second.dhcp()
    before = _state(host)
    host.kill()
    assert first.reaches("10.1.0.6")
    assert first.dhcp().startswith("10.1.0.5 ")
    host.start()
    # From the stored plan, before a new one arrives.
    assert eventually(lambda: host.call("wait", f"{a.id} {b.id}") == [1450])
    assert _state(host) == before
    assert "200 OK" in first.get_metadata("/openstack") or "404" in first.get_metadata("/openstack")
    host.apply(with_ports(one, a))
    assert not first.ping("10.1.0.6")


def test_stored_plan_is_ignored_after_a_reboot(fabric: Fabric) -> None:
    host = fabric.host()
    a = port("10.1.0.5")
    one = with_ports(network(nat=True, floating=[("10.99.0.201", "10.1.0.5")]), a)
    host.apply(one)
    host.kill()
    for pid in host.dnsmasq_pids():
        os.kill(int(pid), signal.SIGKILL)
    host.execute("ip", "netns", "del", NAMES.namespace(one.id))
    host.execute("ip", "link", "del", NAMES.bridge(one.id))
    host.execute("nft", "flush", "ruleset")
    host.start()
    assert "has no network" in host.call("wait", a.id)["error"]
    assert host.namespaces() == []
    host.apply(one)
    assert host.start_guest(one, a).dhcp().startswith("10.1.0.5 ")


def test_empty_plan_removes_everything(fabric: Fabric) -> None:
    host = fabric.host()
    before = (
        host.interfaces(),
        host.execute("nft", "list", "ruleset"),
        host.execute("ip", "route"),
        host.execute("ip", "-4", "addr"),
    )
    a, b = port("10.1.0.5"), port("10.2.0.5")
    one, two = network(nat=True, floating=[("10.99.0.201", "10.1.0.5")]), network("10.2.0.0/24")
    one = with_ports(one, a, routed=[("10.2.0.0/24", two.id)], peers=["10.99.0.200"])
    two = with_ports(two, b, routed=[("10.1.0.0/24", one.id)], peers=["10.99.0.200"])
    host.apply(one, two)
    guest = host.start_guest(one, a)
    guest.dhcp()
    assert len(host.namespaces()) == 2
    assert len(host.dnsmasq_pids()) == 2
    guest.end()
    host.apply()
    after = (
        host.interfaces(),
        host.execute("nft", "list", "ruleset"),
        host.execute("ip", "route"),
        host.execute("ip", "-4", "addr"),
    )
    assert after == before
    assert host.namespaces() == []
    assert host.dnsmasq_pids() == []
    assert host.execute("ip", "neigh", "show", "proxy") == ""
    assert [file.name for file in (host.directory / "networks").iterdir()] == ["plan"]


def test_failed_network_does_not_affect_others(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.2.0.5")
    one, two = with_ports(network(), a), with_ports(network("10.2.0.0/24"), b)
    # Another interface has the name of its bridge.
    host.execute("ip", "link", "add", NAMES.gateway_veth(one.id), "type", "vxlan", "id", "77", "dstport", "4790")
    host.execute("ip", "link", "add", NAMES.bridge(one.id), "type", "vxlan", "id", "78", "dstport", "4790")
    result = host.send_plan(one, two)
    assert isinstance(result, dict)
    assert host.call("wait", b.id) == [1450]
    assert "has no network" in host.call("wait", a.id)["error"]
    # The agent retries by itself.
    host.execute("ip", "link", "del", NAMES.gateway_veth(one.id))
    host.execute("ip", "link", "del", NAMES.bridge(one.id))
    assert eventually(lambda: host.call("wait", a.id) == [1450])


def test_changed_network_is_applied(fabric: Fabric) -> None:
    host = fabric.host()
    a = port("10.1.0.5")
    one = with_ports(network(), a)
    host.apply(one)
    guest = host.start_guest(one, a)
    assert guest.dhcp() == "10.1.0.5 24 mtu=1450 dns= router=10.1.0.1"
    subnet = msgspec.structs.replace(one.subnets[0], gateway="10.1.0.254", held=["10.1.0.254"], dns=["10.1.0.9"])
    a = msgspec.structs.replace(a, addresses=["10.1.0.55"])
    host.apply(msgspec.structs.replace(one, subnets=[subnet], ports=[a], mtu=1300))
    assert guest.dhcp() == "10.1.0.55 24 mtu=1300 dns=10.1.0.9 router=10.1.0.254"
    assert guest.reaches("10.1.0.254")
    assert not guest.ping("10.1.0.1")


def _state(host: Host) -> tuple[object, ...]:
    """Interface numbers and process ids, which change if something is recreated."""
    return (
        host.execute("ip", "-o", "link"),
        host.execute("ip", "-4", "-o", "addr"),
        host.execute("ip", "route"),
        host.execute("sh", "-c", "for n in $(ls /run/netns); do ip -n $n -4 -o addr; ip -n $n route; done"),
        host.dnsmasq_pids(),
        host.execute("nft", "list", "ruleset"),
    )
