"""Stateless security groups: replies require a rule."""

from __future__ import annotations

import subprocess

import msgspec

from kilonova.hosts.messages import FirewallRule, WiredPort
from tests.virt.network_support import ALLOW_EGRESS, Fabric, Guest, eventually, network, port, with_ports

_STATELESS_EGRESS = [msgspec.structs.replace(rule, stateful=False) for rule in ALLOW_EGRESS]
_ECHO_REPLY = FirewallRule(direction="ingress", ethertype="IPv4", protocol="1", port_min=0, stateful=False)
_SSH = FirewallRule(direction="ingress", ethertype="IPv4", protocol="6", port_min=22, port_max=22, stateful=False)
_STATEFUL_SSH = msgspec.structs.replace(_SSH, stateful=True)
_STATEFUL_PING = FirewallRule(direction="egress", ethertype="IPv4", protocol="1", remotes=["10.1.0.5/32"])


def _with_rules(port: WiredPort, *rules: FirewallRule) -> WiredPort:
    return msgspec.structs.replace(port, rules=list(rules))


def test_replies_require_a_rule(fabric: Fabric) -> None:
    host = fabric.host()
    a, b, c = port("10.1.0.5"), port("10.1.0.6", _STATELESS_EGRESS), port("10.1.0.7")
    one = with_ports(network(), a, b, c)
    # DHCP and metadata need no rule.
    first, second, _ = host.start_guests(one, a, b, c)
    assert f'"uuid":"{b.guest_id}"' in second.get_metadata("/openstack/latest/meta_data.json")
    host.apply(with_ports(one, a, _with_rules(b, *ALLOW_EGRESS), c))
    assert eventually(lambda: second.ping("10.1.0.5"))
    host.apply(with_ports(one, a, b, c))
    assert not second.ping("10.1.0.5")
    host.apply(with_ports(one, a, _with_rules(b, *_STATELESS_EGRESS, _ECHO_REPLY), c))
    assert eventually(lambda: second.ping("10.1.0.5"))
    assert not first.ping("10.1.0.6")
    # A stateful rule permits only replies to its own connections.
    host.apply(with_ports(one, a, _with_rules(b, *_STATELESS_EGRESS, _STATEFUL_PING), c))
    assert eventually(lambda: second.ping("10.1.0.5"))
    assert not second.ping("10.1.0.7")


def test_replies_of_the_guest_require_an_egress_rule(fabric: Fabric) -> None:
    host = fabric.host()
    # Other ports stay stateful.
    a, b = port("10.1.0.5", ALLOW_EGRESS), port("10.1.0.6", [_SSH])
    one = with_ports(network(), a, b)
    host.apply(one)
    first, second = host.start_guest(one, a), host.start_guest(one, b)
    first.dhcp()
    second.dhcp()
    listener = second.start_process("busybox", "nc", "-ll", "-p", "22", "-e", "echo", "hello", stdin=subprocess.DEVNULL)
    try:
        assert not _connects(first)
        for rules in ([_SSH, *_STATELESS_EGRESS], [_STATEFUL_SSH, *_STATELESS_EGRESS[1:]]):
            host.apply(with_ports(one, a, _with_rules(b, *rules)))
            assert eventually(lambda: _connects(first)), rules
            host.apply(with_ports(one, a, b))
            assert not _connects(first)
    finally:
        listener.kill()
        listener.wait()


def _connects(guest: Guest) -> bool:
    return "hello" in guest.execute("busybox", "nc", "-w", "1", "10.1.0.6", "22", check=False)
