"""Stateless security groups: answers pass only where a rule permits them."""

from __future__ import annotations

import subprocess

import msgspec

from kilonova.hosts.messages import Firewall, WiredPort
from tests.virt.network_hosts import OUTWARD, Fabric, Guest, network, port, soon, with_ports

_OUT = [msgspec.structs.replace(rule, stateful=False) for rule in OUTWARD]
_ECHO = Firewall(direction="ingress", ethertype="IPv4", protocol="1", port_min=0, stateful=False)
_SSH = Firewall(direction="ingress", ethertype="IPv4", protocol="6", port_min=22, port_max=22, stateful=False)
_STATEFUL_SSH = msgspec.structs.replace(_SSH, stateful=True)
_STATEFUL_PING = Firewall(direction="egress", ethertype="IPv4", protocol="1", remotes=["10.1.0.5/32"])


def _with(port: WiredPort, *rules: Firewall) -> WiredPort:
    return msgspec.structs.replace(port, rules=list(rules))


def test_answers_pass_only_where_a_rule_permits_them(fabric: Fabric) -> None:
    host = fabric.host()
    a, b, c = port("10.1.0.5"), port("10.1.0.6", _OUT), port("10.1.0.7")
    one = with_ports(network(), a, b, c)
    # What the network itself gives needs no rule.
    first, second, _ = host.start_guests(one, a, b, c)
    assert f'"uuid":"{b.guest_id}"' in second.asks("/openstack/latest/meta_data.json")
    host.apply(with_ports(one, a, _with(b, *OUTWARD), c))
    assert soon(lambda: second.ping("10.1.0.5"))
    host.apply(with_ports(one, a, b, c))
    assert not second.ping("10.1.0.5")
    host.apply(with_ports(one, a, _with(b, *_OUT, _ECHO), c))
    assert soon(lambda: second.ping("10.1.0.5"))
    assert not first.ping("10.1.0.6")
    # A stateful rule beside them has its own answers and no others.
    host.apply(with_ports(one, a, _with(b, *_OUT, _STATEFUL_PING), c))
    assert soon(lambda: second.ping("10.1.0.5"))
    assert not second.ping("10.1.0.7")


def test_what_comes_in_is_answered_by_what_may_go_out(fabric: Fabric) -> None:
    host = fabric.host()
    # The connections of others are known as ever.
    a, b = port("10.1.0.5", OUTWARD), port("10.1.0.6", [_SSH])
    one = with_ports(network(), a, b)
    host.apply(one)
    first, second = host.guest(one, a), host.guest(one, b)
    first.dhcp()
    second.dhcp()
    listener = second.start("busybox", "nc", "-ll", "-p", "22", "-e", "echo", "hello", stdin=subprocess.DEVNULL)
    try:
        assert not _hears(first)
        for rules in ([_SSH, *_OUT], [_STATEFUL_SSH, *_OUT[1:]]):
            host.apply(with_ports(one, a, _with(b, *rules)))
            assert soon(lambda: _hears(first)), rules
            host.apply(with_ports(one, a, b))
            assert not _hears(first)
    finally:
        listener.kill()
        listener.wait()


def _hears(guest: Guest) -> bool:
    return "hello" in guest.do("busybox", "nc", "-w", "1", "10.1.0.6", "22", check=False)
