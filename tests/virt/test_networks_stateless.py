"""Stateless security groups: answers pass only where a rule permits them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from kilonova.hosts.messages import Firewall
from tests.virt.network_hosts import OUTWARD, Guest, fabric, network, port, soon, with_ports

_ANSWERS = Firewall(direction="ingress", ethertype="IPv4", protocol="1", port_min=0)
_SSH = Firewall(direction="ingress", ethertype="IPv4", protocol="6", port_min=22, port_max=22)


def test_answers_pass_only_where_a_rule_permits_them(tmp_path: Path) -> None:
    with fabric(tmp_path) as made:
        host = made.host()
        a, b = port("10.1.0.5"), port("10.1.0.6", OUTWARD, stateful=False)
        one = with_ports(network(), a, b)
        host.apply(one)
        first, second = host.guest(one, a), host.guest(one, b)
        first.dhcp()
        # What the network itself gives needs no rule.
        second.dhcp()
        assert f'"uuid":"{b.guest_id}"' in second.asks("/openstack/latest/meta_data.json")
        host.apply(with_ports(one, a, msgspec.structs.replace(b, stateful=True)))
        assert soon(lambda: second.ping("10.1.0.5"))
        host.apply(with_ports(one, a, b))
        assert not second.ping("10.1.0.5")
        host.apply(with_ports(one, a, msgspec.structs.replace(b, rules=[*OUTWARD, _ANSWERS])))
        assert soon(lambda: second.ping("10.1.0.5"))
        assert not first.ping("10.1.0.6")
        # And what comes in is answered only by what may go out; others' connections are known as ever.
        listener = second.start("busybox", "nc", "-ll", "-p", "22", "-e", "echo", "hello", stdin=subprocess.DEVNULL)
        try:
            host.apply(with_ports(one, a, msgspec.structs.replace(b, rules=[_SSH])))
            assert not _hears(first)
            host.apply(
                with_ports(
                    one, msgspec.structs.replace(a, rules=OUTWARD), msgspec.structs.replace(b, rules=[*OUTWARD, _SSH])
                )
            )
            assert soon(lambda: _hears(first))
        finally:
            listener.kill()
            listener.wait()


def _hears(guest: Guest) -> bool:
    return "hello" in guest.do("busybox", "nc", "-w", "2", "10.1.0.6", "22", check=False)
