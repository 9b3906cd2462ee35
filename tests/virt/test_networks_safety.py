"""Security groups, anti-spoofing and isolation of the host."""

from __future__ import annotations

import asyncio
import select
import subprocess
from pathlib import Path

import msgspec
import pytest

from kilonova.config import Config
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.networks.host_networks import HostNetworks
from kilonova.hosts.messages import FirewallRule, NetworkPlan
from tests.virt.network_support import (
    ALLOW_EGRESS,
    NAMES,
    Fabric,
    Guest,
    all_unreachable,
    eventually,
    network,
    port,
    with_ports,
)

_ICMP = FirewallRule(direction="ingress", ethertype="IPv4", protocol="1", remotes=["10.1.0.5/32"])
_SSH = FirewallRule(direction="ingress", ethertype="IPv4", protocol="6", port_min=22, port_max=23)

_UNKNOWN_MAC = "fa:16:3e:99:99:99"
_COUNTERS = """
table netdev seen {{
    chain seen {{
        type filter hook ingress device eth0 priority 0
        ether daddr {unknown} counter
        ether daddr {own} counter
    }}
}}
"""


def test_security_group_rules(fabric: Fabric) -> None:
    host = fabric.host()
    a, b, c = port("10.1.0.5"), port("10.1.0.6", ALLOW_EGRESS), port("10.1.0.7")
    one = with_ports(network(), a, b, c)
    first, second, third = host.start_guests(one, a, b, c)
    assert not first.ping("10.1.0.6")
    # Replies to the guest's own connections are permitted.
    assert second.reaches("10.1.0.5")
    with _Listener(second, 22), _Listener(second, 24):
        assert not _connects(first, "10.1.0.6", 22)
        host.apply(with_ports(one, a, msgspec.structs.replace(b, rules=[*ALLOW_EGRESS, _ICMP, _SSH]), c))
        assert first.reaches("10.1.0.6")
        assert not third.ping("10.1.0.6")
        assert eventually(lambda: _connects(third, "10.1.0.6", 22))
        assert not _connects(third, "10.1.0.6", 24)
        # An empty remote group and missing egress rules permit nothing.
        empty_group = msgspec.structs.replace(_ICMP, remotes=[], group="empty")
        host.apply(with_ports(one, a, msgspec.structs.replace(b, rules=[empty_group]), c))
        assert all_unreachable((third, "10.1.0.6"), (second, "10.1.0.7"))


def test_removed_rule_ends_established_connections(fabric: Fabric) -> None:
    host = fabric.host()
    many = [f"10.1.0.{number}/32" for number in range(3, 60, 2)]
    groups = {"members": many, "empty": []}
    ssh = msgspec.structs.replace(_SSH, group="members")
    a, b = port("10.1.0.5"), port("10.1.0.6", [*ALLOW_EGRESS, ssh])
    one = with_ports(network(), a, b)
    host.apply(one, groups=groups)
    first, second = host.start_guest(one, a), host.start_guest(one, b)
    first.dhcp()
    second.dhcp()
    with _Listener(second, 22, "cat"):
        connection = first.start_process(
            "busybox", "nc", "10.1.0.6", "22", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert _echo(connection, "one", 60.0) == "one"
            host.apply(with_ports(one, a, msgspec.structs.replace(b, rules=ALLOW_EGRESS)))
            assert _echo(connection, "two") == ""
            host.apply(one, groups={"members": many[5:]})
            assert _read_available(connection, 1.0) == ""
            host.apply(one, groups=groups)
            assert eventually(lambda: _read_available(connection, 0.5), 60) == "two"
        finally:
            connection.kill()
            connection.communicate()


def _echo(connection: subprocess.Popen[str], word: str, seconds: float = 1.5) -> str:
    assert connection.stdin is not None
    connection.stdin.write(f"{word}\n")
    connection.stdin.flush()
    return _read_available(connection, seconds)


def _read_available(connection: subprocess.Popen[str], seconds: float) -> str:
    assert connection.stdout is not None
    ready, _, _ = select.select([connection.stdout], [], [], seconds)
    return connection.stdout.readline().strip() if ready else ""


def test_spoofed_addresses_are_dropped(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    one = with_ports(network(), a, b)
    first, second = host.start_guests(one, a, b)
    assert first.reaches("10.1.0.6")
    first.execute("ip", "addr", "add", "10.1.0.9/24", "dev", "eth0")
    assert not first.ping("10.1.0.6", "-I", "10.1.0.9")
    second.execute("ip", "neigh", "flush", "all")
    assert not second.ping("10.1.0.9"), "the spoofed address does not respond"
    first.execute("ip", "link", "set", "eth0", "address", "fa:16:3e:77:77:77")
    assert not first.ping("10.1.0.6")
    first.execute("ip", "link", "set", "eth0", "address", a.mac)
    # Allowed address pairs are permitted.
    host.apply(with_ports(one, msgspec.structs.replace(a, pairs=[(a.mac, "10.1.0.8/31")]), b))
    assert first.reaches("10.1.0.6", "-I", "10.1.0.9")
    # Without port security everything is permitted.
    host.apply(with_ports(one, msgspec.structs.replace(a, secured=False, rules=[]), b))
    first.execute("ip", "addr", "add", "10.1.0.77/24", "dev", "eth0")
    assert first.reaches("10.1.0.6", "-I", "10.1.0.77")


def test_unknown_and_down_ports_are_blocked(fabric: Fabric) -> None:
    host = fabric.host()
    a, b, stranger = port("10.1.0.5"), port("10.1.0.6"), port("10.1.0.7")
    one = with_ports(network(), a, b)
    host.apply(one)
    first, second, third = (host.start_guest(one, each) for each in (a, b, stranger))
    first.dhcp()
    second.dhcp()
    third.set_address("10.1.0.7/24")
    assert first.reaches("10.1.0.6")
    assert all_unreachable((third, "10.1.0.5"), (third, "10.1.0.1"))
    host.apply(with_ports(one, a, msgspec.structs.replace(b, is_up=False)))
    assert all_unreachable((first, "10.1.0.6"), (second, "10.1.0.1"))


def test_guests_cannot_reach_the_host(fabric: Fabric) -> None:
    host = fabric.host()
    a = port("10.1.0.5")
    one = with_ports(network(nat=True), a)
    host.apply(one)
    guest = host.start_guest(one, a)
    guest.dhcp()
    assert guest.reaches(fabric.address)
    assert not guest.ping(host.address)
    # Also not through the bridge, where the host would answer for its other addresses.
    guest.execute("ip", "route", "add", f"{host.address}/32", "dev", "eth0")
    assert not guest.ping(host.address)
    assert "inet" not in host.execute("ip", "addr", "show", "dev", NAMES.bridge(one.id))


def test_guest_cannot_act_as_dhcp_server_or_router(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    one = with_ports(network(subnet={"dhcp": False}), a, b)
    host.apply(one)
    first, second = host.start_guest(one, a), host.start_guest(one, b)
    first.set_address("10.1.0.5/24")
    server = first.start_process(
        *("dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--port=0", "--interface=eth0", "--leasefile-ro"),
        *("--dhcp-range=10.1.0.50,10.1.0.60", "--bind-interfaces"),
        stderr=subprocess.DEVNULL,
    )
    try:
        assert eventually(lambda: ":0043 " in first.execute("cat", "/proc/net/udp")), "the DHCP server listens"
        assert not second.succeeds("busybox", "udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "2", "-T", "1")
    finally:
        server.kill()
        server.wait()


def test_unicast_is_not_flooded_to_other_guests(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    one = with_ports(network(), a, b)
    first, second = host.start_guests(one, a, b)
    first.execute("ip", "neigh", "add", "10.1.0.7", "lladdr", _UNKNOWN_MAC, "dev", "eth0")
    second.execute("nft", _COUNTERS.format(unknown=_UNKNOWN_MAC, own=b.mac))
    assert not first.ping("10.1.0.7")
    assert first.reaches("10.1.0.6")
    counted = second.execute("nft", "list", "ruleset")
    assert f"ether daddr {_UNKNOWN_MAC} counter packets 0 " in counted
    assert f"ether daddr {b.mac} counter packets 0 " not in counted


def test_port_with_foreign_device_id_gets_no_metadata(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.5")
    one, two = with_ports(network(), a), with_ports(network(), b)
    host.apply(one, two)
    guest = host.start_guest(two, b)
    guest.dhcp()
    path = "/openstack/latest/meta_data.json"
    assert f'"uuid":"{b.guest_id}"' in guest.get_metadata(path)
    host.apply(one, with_ports(two, msgspec.structs.replace(b, guest_id=a.guest_id)))
    assert "404 Not Found" in guest.get_metadata(path)


@pytest.mark.parametrize("dns", ["fe80::1%x\ndhcp-script=/bin/sh", "9.9.9.9 ", "dns.example"])
def test_plan_with_invalid_address_is_refused(tmp_path: Path, dns: str) -> None:
    one = with_ports(network(subnet={"dns": [dns]}), port("10.1.0.5"))
    networks = HostNetworks(Config(), "h", tmp_path, lambda _: None)
    with pytest.raises(DriverError, match="in place of an id or address"):
        asyncio.run(networks.apply(NetworkPlan(read_at=1.0, networks=[one])))
    assert list(tmp_path.iterdir()) == []


class _Listener:
    """A TCP server in a guest, which runs the program for each connection."""

    def __init__(self, guest: Guest, port: int, *program: str) -> None:
        command = program or ("echo", "hello")
        self._process = guest.start_process(
            "busybox", "nc", "-ll", "-p", str(port), "-e", *command, stdin=subprocess.DEVNULL
        )
        assert eventually(lambda: f":{port:04X} " in guest.execute("cat", "/proc/net/tcp", "/proc/net/tcp6"))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def _connects(guest: Guest, address: str, port: int) -> bool:
    done = subprocess.run(
        [*guest.enter, "busybox", "nc", "-w", "1", address, str(port)],
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    return b"hello" in done.stdout
