"""Guests on ports of a real Neutron: plugged by os-vif into a real Open vSwitch, with bindings given by hand."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from kilonova.hosts.messages import Flavor, Guest, Image, Nic, Transfer
from kilonova.hosts.messages.verbs import (
    AttachNic,
    Destroy,
    DetachNic,
    Discard,
    PowerOff,
    PowerOn,
    Reboot,
    Resume,
    Spawn,
    Suspend,
)
from kilonova.hosts.transport import HostRefused
from kilonova.ids import new_id
from tests.support.standalone_agent import StandaloneAgent
from tests.support.virt_hosts import linux_image
from tests.support.virt_ovs import OpenSwitch
from tests.virt.move_support import HostPair, assert_counting, host_pair, make_guest

# What Neutron's OVN driver gives for a host whose Open vSwitch runs in user space.
USER_SPACE: dict[str, Any] = {
    "bridge_name": "br-int",
    "datapath_type": "netdev",
    "port_filter": True,
    "connectivity": "l2",
}
HYBRID: dict[str, Any] = {**USER_SPACE, "ovs_hybrid_plug": True}
LINUX = Flavor(name="linux", vcpus=1, ram_mb=256, disk_gb=1)


class Switches:
    """Two hosts with an Open vSwitch and an agent each."""

    def __init__(self, hosts: HostPair) -> None:
        self.hosts = hosts
        self.one, self.two = hosts.one, hosts.two
        self.switch = OpenSwitch(hosts.one.host)
        self.other_switch = OpenSwitch(hosts.two.host)

    def boot_linux(self, address: str, script: str, **fields: Any) -> Guest:
        """Boot a Linux guest that gives its first interface the address and runs the script."""
        image = self.hosts.site.directory / "linux.raw"
        if not image.exists():
            subprocess.run(["qemu-img", "convert", "-O", "raw", str(linux_image()), str(image)], check=True)
        user_data = f"#!/bin/sh\nip addr add {address}/24 dev eth0\n{script}\n".encode()
        guest = make_guest(
            flavor=LINUX, image=Image(id="linux", disk_format="raw"), config_drive=True, user_data=user_data, **fields
        )
        self.one.call(Spawn(guest=guest, data=Transfer(url=str(image), ticket="")))
        return guest


@pytest.fixture(scope="module")
def switches() -> Iterator[Switches]:
    with host_pair() as hosts:
        yield Switches(hosts)


@pytest.fixture(scope="module")
def shared_switches() -> Iterator[Switches]:
    """Two hosts with shared storage."""
    with host_pair(shared_storage=True) as hosts:
        yield Switches(hosts)


def make_nic(vif_type: str = "ovs", **details: Any) -> Nic:
    identity = new_id()
    return Nic(
        port_id=identity,
        mac=f"fa:16:3e:{identity[0:2]}:{identity[2:4]}:{identity[4:6]}",
        network_id=new_id(),
        vif_type=vif_type,
        vif_details=details,
        vnic_type="normal",
        mtu=1442,
    )


def tap(nic: Nic) -> str:
    return f"tap{nic.port_id[:11]}"


def links(agent: StandaloneAgent) -> dict[str, dict[str, Any]]:
    return {link["ifname"]: link for link in json.loads(agent.host.execute("ip", "-j", "link", "show"))}


def interface(agent: StandaloneAgent, guest: Guest) -> ET.Element:
    found = ET.fromstring(agent.host.execute("virsh", "dumpxml", f"kn-{guest.id}")).find("devices/interface")
    assert found is not None
    return found


def attribute(element: ET.Element, path: str, name: str) -> str | None:
    child = element.find(path)
    return None if child is None else child.get(name)


def test_guests_on_open_vswitch_in_user_space_reach_each_other(switches: Switches) -> None:
    one, switch = switches.one, switches.switch
    first, second, extra = (make_nic(**USER_SPACE) for _ in range(3))
    answering = switches.boot_linux("10.20.0.1", "nc -ll -p 80 -e echo ANSWER &\necho READY", nics=[first])
    one.wait_for_output(answering.id, "READY")
    script = (
        "until ping -c 1 -W 1 10.20.0.1; do :; done\n"
        'echo "PING OK"\n'
        "until nc -w 2 10.20.0.1 80 </dev/null | grep ANSWER; do sleep 0.2; done\n"
        'echo "TCP OK"\n'
    )
    asking = switches.boot_linux("10.20.0.2", script, nics=[second])
    one.wait_for_output(asking.id, "PING OK")
    # TCP needs checksums, which a guest must not leave to a switch that reads packets as they are.
    one.wait_for_output(asking.id, "TCP OK")
    assert switch.ports("br-int") == sorted([tap(first), tap(second)])
    assert links(one)[tap(first)]["mtu"] == 1442
    assert switch.get("interface", tap(first), "external_ids:iface-id") == first.port_id
    assert switch.get("interface", tap(first), "external_ids:attached-mac") == first.mac
    assert switch.get("bridge", "br-int", "datapath_type") == "netdev"

    for _ in range(2):
        one.call(AttachNic(guest_id=asking.id, nic=extra))
        assert tap(extra) in switch.ports("br-int")
    for _ in range(2):
        one.call(DetachNic(guest_id=asking.id, port_id=extra.port_id))
        assert switch.ports("br-int") == sorted([tap(first), tap(second)])
    assert tap(extra) not in links(one)

    for guest in (answering, asking):
        one.call(Destroy(guest_id=guest.id))
    assert switch.ports("br-int") == []


def devices_of(agent: StandaloneAgent, switch: OpenSwitch, nic: Nic) -> set[str]:
    """The port's network devices, and with `br-int/` its ports of Open vSwitch."""
    found = {name for name in links(agent) if nic.port_id[:11] in name}
    return found | {f"br-int/{name}" for name in switch.ports("br-int") if nic.port_id[:11] in name}


def plugged(nic: Nic, details: dict[str, Any]) -> set[str]:
    """The devices of a plugged port."""
    own = nic.port_id[:11]
    if details is HYBRID:
        return {f"tap{own}", f"qbr{own}", f"qvb{own}", f"qvo{own}", f"br-int/qvo{own}"}
    return {f"tap{own}", f"br-int/tap{own}"}


@pytest.mark.parametrize("details", [USER_SPACE, HYBRID], ids=["ovs", "hybrid"])
def test_port_is_plugged_while_its_guest_runs(switches: Switches, details: dict[str, Any]) -> None:
    one, switch = switches.one, switches.switch
    nic = make_nic(**details)

    def devices() -> set[str]:
        return devices_of(one, switch, nic)

    guest = switches.hosts.boot(one, make_guest(nics=[nic]))
    assert devices() == plugged(nic, details)
    if details is HYBRID:
        now, own = links(one), nic.port_id[:11]
        assert now[f"tap{own}"]["master"] == now[f"qvb{own}"]["master"] == f"qbr{own}"
        assert switch.get("interface", f"qvo{own}", "external_ids:iface-id") == nic.port_id
    one.kill()
    one.start()
    assert devices() == plugged(nic, details)
    assert_counting(one, guest)
    one.call(Reboot(guest_id=guest.id, hard=True))
    assert devices() == plugged(nic, details)
    one.call(Suspend(guest_id=guest.id))
    one.call(Resume(guest_id=guest.id))
    assert devices() == plugged(nic, details)
    for _ in range(2):
        one.call(PowerOff(guest_id=guest.id))
        assert devices() == set()
    one.call(PowerOn(guest_id=guest.id))
    assert devices() == plugged(nic, details)
    for _ in range(2):
        one.call(Destroy(guest_id=guest.id))
        assert devices() == set()


@pytest.mark.parametrize("details", [USER_SPACE, HYBRID], ids=["ovs", "hybrid"])
def test_live_migration_plugs_destination_and_unplugs_source(switches: Switches, details: dict[str, Any]) -> None:
    hosts, one, two = switches.hosts, switches.one, switches.two
    # The other host plugs in another way: it gets the details of its own binding.
    other = HYBRID if details is USER_SPACE else USER_SPACE
    nic = make_nic(**details)
    guest = hosts.boot(one, make_guest(nics=[nic]))
    moving = structs.replace(guest, nics=[structs.replace(nic, vif_details=other)])

    def devices() -> tuple[set[str], set[str]]:
        return devices_of(one, switches.switch, nic), devices_of(two, switches.other_switch, nic)

    slot = hosts.prepare_migration(moving, one, two)
    # libvirt makes the tap when the guest arrives.
    prepared = {name for name in plugged(nic, other) if "tap" not in name}
    assert devices() == (plugged(nic, details), prepared)
    two.call(Discard(guest_id=guest.id, slot=slot))
    assert devices() == (plugged(nic, details), set())

    hosts.migrate(moving, one, two)
    assert_counting(two, guest)
    assert devices() == (set(), plugged(nic, other))
    two.call(Destroy(guest_id=guest.id))
    assert devices() == (set(), set())


def test_live_migration_on_shared_storage_unplugs_source(shared_switches: Switches) -> None:
    hosts, one, two = shared_switches.hosts, shared_switches.one, shared_switches.two
    nic = make_nic(**HYBRID)
    guest = hosts.boot(one, make_guest(nics=[nic]))
    moving = structs.replace(guest, nics=[structs.replace(nic, vif_details=USER_SPACE)])
    hosts.migrate(moving, one, two)
    assert_counting(two, guest)
    assert devices_of(one, shared_switches.switch, nic) == set()
    assert devices_of(two, shared_switches.other_switch, nic) == plugged(nic, USER_SPACE)
    two.call(Destroy(guest_id=guest.id))


def test_port_on_linux_bridge(switches: Switches) -> None:
    one = switches.one
    nic, named = make_nic("bridge"), make_nic("bridge", bridge_name="brq-mine")
    guest = switches.hosts.boot(one, make_guest(nics=[nic, named]))
    now = links(one)
    assert now[tap(nic)]["master"] == f"brq{nic.network_id[:11]}"
    assert now[tap(named)]["master"] == "brq-mine"
    assert now[tap(nic)]["mtu"] == 1442
    one.call(Destroy(guest_id=guest.id))
    assert {tap(nic), tap(named)}.isdisjoint(links(one))
    # Agents of Neutron remove the bridges of networks.
    for bridge in (f"brq{nic.network_id[:11]}", "brq-mine"):
        one.host.execute("ip", "link", "del", bridge)


def test_port_on_tap(switches: Switches) -> None:
    one = switches.one
    nic = make_nic("tap")
    guest = switches.hosts.boot(one, make_guest(nics=[nic]))
    assert "master" not in links(one)[tap(nic)]
    assert links(one)[tap(nic)]["mtu"] == 1442
    assert interface(one, guest).get("type") == "ethernet"
    one.call(Destroy(guest_id=guest.id))
    assert tap(nic) not in links(one)


def test_port_without_open_vswitch_is_refused_until_it_returns(switches: Switches) -> None:
    two = switches.two
    nic = make_nic(**HYBRID)
    switches.other_switch.stop()
    guest = make_guest(nics=[nic])
    data = Transfer(url=str(switches.hosts.site.micro_image()), ticket="")
    with pytest.raises(HostRefused, match="cannot plug port"):
        two.call(Spawn(guest=guest, data=data))
    switches.other_switch.start()
    two.call(Spawn(guest=guest, data=data))
    assert devices_of(two, switches.other_switch, nic) == plugged(nic, HYBRID)
    two.call(Destroy(guest_id=guest.id))


def test_guest_with_invalid_binding_is_refused_and_removed(switches: Switches) -> None:
    one = switches.one
    data = Transfer(url=str(switches.hosts.site.micro_image()), ticket="")
    for nic, problem in (
        (make_nic("vhostuser"), "supports ovs, bridge and tap"),
        (make_nic("bridge", bridge_name="a b; reboot"), "in place of a name"),
        (make_nic(**{**USER_SPACE, "bridge_name": "longer than fifteen"}), "in place of a name"),
    ):
        guest = make_guest(nics=[nic])
        with pytest.raises(HostRefused, match=problem):
            one.call(Spawn(guest=guest, data=data))
        one.call(Destroy(guest_id=guest.id))
    assert switches.hosts.instance_files(one) == []


def test_failed_attach_is_undone(switches: Switches) -> None:
    one, switch = switches.one, switches.switch
    guest = switches.hosts.boot(one, make_guest())
    nic = make_nic(**HYBRID)
    switch.stop()
    with pytest.raises(HostRefused, match="os-vif cannot"):
        one.call(AttachNic(guest_id=guest.id, nic=nic))
    switch.start()
    for _ in range(2):
        one.call(DetachNic(guest_id=guest.id, port_id=nic.port_id))
        assert devices_of(one, switch, nic) == set()
    one.call(Destroy(guest_id=guest.id))
