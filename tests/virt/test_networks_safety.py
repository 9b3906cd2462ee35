"""What guests may not: security groups, addresses of others, the host, and what only the network itself may say."""

from __future__ import annotations

import asyncio
import select
import subprocess
from pathlib import Path

import msgspec
import pytest

from kilonova.config import Config
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.networks.wiring import Wiring
from kilonova.hosts.messages import Firewall, NetworkPlan
from tests.virt.network_hosts import NAMES, OUTWARD, Fabric, Guest, network, nobody_reaches, port, soon, with_ports

_ICMP = Firewall(direction="ingress", ethertype="IPv4", protocol="1", remotes=["10.1.0.5/32"])
_SSH = Firewall(direction="ingress", ethertype="IPv4", protocol="6", port_min=22, port_max=23)

_OTHER = "fa:16:3e:99:99:99"
_COUNTERS = """
table netdev seen {{
    chain seen {{
        type filter hook ingress device eth0 priority 0
        ether daddr {other} counter
        ether daddr {own} counter
    }}
}}
"""


def test_a_security_group_blocks_and_then_permits(fabric: Fabric) -> None:
    host = fabric.host()
    a, b, c = port("10.1.0.5"), port("10.1.0.6", OUTWARD), port("10.1.0.7")
    one = with_ports(network(), a, b, c)
    first, second, third = host.start_guests(one, a, b, c)
    assert not first.ping("10.1.0.6")
    # Answers belong to what the guest itself began.
    assert second.reaches("10.1.0.5")
    with _listening(second, 22), _listening(second, 24):
        assert not _reaches(first, "10.1.0.6", 22)
        host.apply(with_ports(one, a, msgspec.structs.replace(b, rules=[*OUTWARD, _ICMP, _SSH]), c))
        assert first.reaches("10.1.0.6")
        assert not third.ping("10.1.0.6")
        assert soon(lambda: _reaches(third, "10.1.0.6", 22))
        assert not _reaches(third, "10.1.0.6", 24)
        # Nobody of an empty group, and nothing out where nothing is permitted.
        nobody = msgspec.structs.replace(_ICMP, remotes=[], group="nobody")
        host.apply(with_ports(one, a, msgspec.structs.replace(b, rules=[nobody]), c))
        assert nobody_reaches((third, "10.1.0.6"), (second, "10.1.0.7"))


def test_what_is_no_longer_permitted_does_not_go_on(fabric: Fabric) -> None:
    host = fabric.host()
    many = [f"10.1.0.{number}/32" for number in range(3, 60, 2)]
    groups = {"people": many, "nobody": []}
    ssh = msgspec.structs.replace(_SSH, group="people")
    a, b = port("10.1.0.5"), port("10.1.0.6", [*OUTWARD, ssh])
    one = with_ports(network(), a, b)
    host.apply(one, groups=groups)
    first, second = host.guest(one, a), host.guest(one, b)
    first.dhcp()
    second.dhcp()
    with _listening(second, 22, "cat"):
        talk = first.start("busybox", "nc", "10.1.0.6", "22", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert _echo(talk, "one", 60.0) == "one"
            host.apply(with_ports(one, a, msgspec.structs.replace(b, rules=OUTWARD)))
            assert _echo(talk, "two") == ""
            host.apply(one, groups={"people": many[5:]})
            assert _heard(talk, 1.0) == ""
            host.apply(one, groups=groups)
            assert soon(lambda: _heard(talk, 0.5), 60) == "two"
        finally:
            talk.kill()
            talk.communicate()


def _echo(talk: subprocess.Popen[str], word: str, seconds: float = 1.5) -> str:
    assert talk.stdin is not None
    talk.stdin.write(f"{word}\n")
    talk.stdin.flush()
    return _heard(talk, seconds)


def _heard(talk: subprocess.Popen[str], seconds: float) -> str:
    assert talk.stdout is not None
    ready, _, _ = select.select([talk.stdout], [], [], seconds)
    return talk.stdout.readline().strip() if ready else ""


def test_nobody_sends_from_the_address_of_another(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    one = with_ports(network(), a, b)
    first, second = host.start_guests(one, a, b)
    assert first.reaches("10.1.0.6")
    first.do("ip", "addr", "add", "10.1.0.9/24", "dev", "eth0")
    assert not first.ping("10.1.0.6", "-I", "10.1.0.9")
    second.do("ip", "neigh", "flush", "all")
    assert not second.ping("10.1.0.9"), "it answers for an address that is not its own"
    first.do("ip", "link", "set", "eth0", "address", "fa:16:3e:77:77:77")
    assert not first.ping("10.1.0.6")
    first.do("ip", "link", "set", "eth0", "address", a.mac)
    # Permitted pairs are.
    host.apply(with_ports(one, msgspec.structs.replace(a, pairs=[(a.mac, "10.1.0.8/31")]), b))
    assert first.reaches("10.1.0.6", "-I", "10.1.0.9")
    # And whoever is not secured may all.
    host.apply(with_ports(one, msgspec.structs.replace(a, secured=False, rules=[]), b))
    first.do("ip", "addr", "add", "10.1.0.77/24", "dev", "eth0")
    assert first.reaches("10.1.0.6", "-I", "10.1.0.77")


def test_who_is_not_in_the_plan_or_down_gets_nothing_through(fabric: Fabric) -> None:
    host = fabric.host()
    a, b, stranger = port("10.1.0.5"), port("10.1.0.6"), port("10.1.0.7")
    one = with_ports(network(), a, b)
    host.apply(one)
    first, second, third = (host.guest(one, each) for each in (a, b, stranger))
    first.dhcp()
    second.dhcp()
    third.address("10.1.0.7/24")
    assert first.reaches("10.1.0.6")
    assert nobody_reaches((third, "10.1.0.5"), (third, "10.1.0.1"))
    host.apply(with_ports(one, a, msgspec.structs.replace(b, is_up=False)))
    assert nobody_reaches((first, "10.1.0.6"), (second, "10.1.0.1"))


def test_guests_reach_neither_the_host_nor_its_bridges(fabric: Fabric) -> None:
    host = fabric.host()
    a = port("10.1.0.5")
    one = with_ports(network(nat=True), a)
    host.apply(one)
    guest = host.guest(one, a)
    guest.dhcp()
    assert guest.reaches(fabric.address)
    assert not guest.ping(host.address)
    # Also not by the bridge, on which the host has no address but would answer for its others.
    guest.do("ip", "route", "add", f"{host.address}/32", "dev", "eth0")
    assert not guest.ping(host.address)
    assert "inet" not in host.do("ip", "addr", "show", "dev", NAMES.bridge(one.id))


def test_a_guest_gives_no_addresses_to_others(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    one = with_ports(network(subnet={"dhcp": False}), a, b)
    host.apply(one)
    first, second = host.guest(one, a), host.guest(one, b)
    first.address("10.1.0.5/24")
    server = first.start(
        *("dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--port=0", "--interface=eth0", "--leasefile-ro"),
        *("--dhcp-range=10.1.0.50,10.1.0.60", "--bind-interfaces"),
        stderr=subprocess.DEVNULL,
    )
    try:
        assert soon(lambda: ":0043 " in first.do("cat", "/proc/net/udp")), "it listens"
        assert not second.works("busybox", "udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "2", "-T", "1")
    finally:
        server.kill()
        server.wait()


def test_what_is_for_one_guest_is_not_flooded_to_others(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.6")
    one = with_ports(network(), a, b)
    first, second = host.start_guests(one, a, b)
    first.do("ip", "neigh", "add", "10.1.0.7", "lladdr", _OTHER, "dev", "eth0")
    second.do("nft", _COUNTERS.format(other=_OTHER, own=b.mac))
    assert not first.ping("10.1.0.7")
    assert first.reaches("10.1.0.6")
    counted = second.do("nft", "list", "ruleset")
    assert f"ether daddr {_OTHER} counter packets 0 " in counted
    assert f"ether daddr {b.mac} counter packets 0 " not in counted


def test_a_port_that_names_anothers_guest_is_not_told_of_it(fabric: Fabric) -> None:
    host = fabric.host()
    a, b = port("10.1.0.5"), port("10.1.0.5")
    one, two = with_ports(network(), a), with_ports(network(), b)
    host.apply(one, two)
    guest = host.guest(two, b)
    guest.dhcp()
    path = "/openstack/latest/meta_data.json"
    assert f'"uuid":"{b.guest_id}"' in guest.asks(path)
    host.apply(one, with_ports(two, msgspec.structs.replace(b, guest_id=a.guest_id)))
    assert "404 Not Found" in guest.asks(path)


@pytest.mark.parametrize("dns", ["fe80::1%x\ndhcp-script=/bin/sh", "9.9.9.9 ", "dns.example"])
def test_nothing_but_addresses_gets_into_scripts(tmp_path: Path, dns: str) -> None:
    one = with_ports(network(subnet={"dns": [dns]}), port("10.1.0.5"))
    wiring = Wiring(Config(), "h", tmp_path, lambda _: None)
    with pytest.raises(DriverError, match="where an address or an id has to be"):
        asyncio.run(wiring.apply(NetworkPlan(read_at=1.0, networks=[one])))
    assert list(tmp_path.iterdir()) == []


class _listening:
    def __init__(self, guest: Guest, number: int, *program: str) -> None:
        answer = program or ("echo", "hello")
        self._process = guest.start("busybox", "nc", "-ll", "-p", str(number), "-e", *answer, stdin=subprocess.DEVNULL)
        assert soon(lambda: f":{number:04X} " in guest.do("cat", "/proc/net/tcp", "/proc/net/tcp6"))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def _reaches(guest: Guest, address: str, number: int) -> bool:
    done = subprocess.run(
        [*guest.enter, "busybox", "nc", "-w", "1", address, str(number)],
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    return b"hello" in done.stdout
