"""Ports of a real Neutron: what is read from their bindings, and how libvirt connects them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest
from msgspec import structs

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import live_migration, metadata, vif
from kilonova.hosts.drivers.libvirt.migration_records import PreparedDestination
from kilonova.hosts.messages import Nic, WiredSubnet
from tests.hosts import support

PORT = "0123abcd-4567-4000-8000-000000000001"
NETWORK = "89abcdef-4567-4000-8000-000000000002"


def nic(vif_type: str = "ovs", **fields: Any) -> Nic:
    values = {"mac": "fa:16:3e:00:00:01", "network_id": NETWORK, "vnic_type": "normal", "mtu": 1442, **fields}
    return Nic(port_id=PORT, vif_type=vif_type, **values)


def connected(nic: Nic, nic_model: str = "virtio") -> str:
    interface = ET.Element("interface")
    vif.connect(interface, vif.read(nic), nic_model)
    return ET.tostring(interface, encoding="unicode")


def test_port_of_open_vswitch() -> None:
    assert connected(nic(vif_details={"bridge_name": "br-int", "datapath_type": "system"})) == (
        '<interface type="bridge"><source bridge="br-int" />'
        f'<virtualport type="openvswitch"><parameters interfaceid="{PORT}" /></virtualport>'
        '<target dev="tap0123abcd-45" /><mtu size="1442" /></interface>'
    )


def test_port_of_open_vswitch_behind_its_own_bridge() -> None:
    found = nic(vif_details={"bridge_name": "br-int", "ovs_hybrid_plug": True})
    assert connected(found) == (
        '<interface type="bridge"><source bridge="qbr0123abcd-45" />'
        '<target dev="tap0123abcd-45" /><mtu size="1442" /></interface>'
    )
    assert vif.read(found).switch == "br-int"


def test_port_of_linux_bridge() -> None:
    assert '<source bridge="brq89abcdef-45" />' in connected(nic("bridge"))
    assert '<source bridge="brq-mine" />' in connected(nic("bridge", vif_details={"bridge_name": "brq-mine"}))
    assert vif.read(nic("bridge")).switch == ""


def test_port_on_tap() -> None:
    assert connected(nic("tap", mtu=0)) == '<interface type="ethernet"><target dev="tap0123abcd-45" /></interface>'


@pytest.mark.parametrize("nic_model,has_offloads", [("virtio", False), ("e1000", True)])
def test_guest_of_switch_in_user_space_computes_its_checksums(nic_model: str, has_offloads: bool) -> None:
    document = connected(nic(vif_details={"datapath_type": "netdev"}), nic_model)
    assert ('<host csum="off" gso="off"' not in document) is has_offloads


def test_offloads_keep_number_of_queues() -> None:
    interface = ET.fromstring('<interface><driver queues="4" /></interface>')
    vif.connect(interface, vif.read(nic(vif_details={"datapath_type": "netdev"})), "virtio")
    (driver,) = interface.findall("driver")
    assert driver.get("queues") == "4"
    assert driver.find("host") is not None


@pytest.mark.parametrize(
    "changes,problem",
    [
        ({"vif_type": "binding_failed"}, "vif_type 'binding_failed'"),
        ({"vif_type": "vhostuser"}, "supports ovs, bridge and tap"),
        ({"vnic_type": "direct"}, "vnic_type 'direct'"),
        ({"vif_details": {"bridge_name": "br-int; reboot"}}, "'br-int; reboot' in place of a name"),
        ({"vif_details": {"bridge_name": "-br"}}, "'-br' in place of a name"),
        ({"vif_details": {"bridge_name": ".."}}, "'..' in place of a name"),
        ({"vif_details": {"bridge_name": "b" * 16}}, "in place of a name"),
        ({"vif_details": {"datapath_type": "net dev"}}, "'net dev' in place of a name"),
        ({"port_id": "../../etc/passwd"}, "in place of a name"),
        ({"vif_type": "bridge", "network_id": "a/b"}, "in place of a name"),
        ({"mac": "fa:16:3e:00:00"}, "in place of a name"),
        ({"mtu": 9}, "MTU 9"),
    ],
)
def test_invalid_binding_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(DriverError, match=problem):
        vif.read(structs.replace(nic(), **changes))


def test_destination_of_live_migration_connects_in_its_own_way() -> None:
    hybrid = nic(vif_details={"ovs_hybrid_plug": True, "bridge_name": "br-other"})
    source, destination = (
        "<domain><devices>"
        + connected(found).replace("<source", '<mac address="fa:16:3e:00:00:01" /><source')
        + "</devices></domain>"
        for found in (nic(vif_details={"bridge_name": "br-int"}), hybrid)
    )
    moved = live_migration.destination_document(source, PreparedDestination(destination, shared=False))
    assert "virtualport" not in moved
    assert 'bridge="qbr0123abcd-45"' in moved
    back = live_migration.destination_document(destination, PreparedDestination(source, shared=False))
    assert '<virtualport type="openvswitch">' in back


def test_network_data_of_known_and_unknown_subnets() -> None:
    static = WiredSubnet(id="s", cidr="10.0.0.0/24", gateway="10.0.0.1", dhcp=False, dns=["9.9.9.9"])
    known = nic(addresses=["10.0.0.5"], subnets=[static])
    unknown = structs.replace(
        nic(addresses=["192.0.2.7", "2001:db8::7"]), port_id="fedcba98-4567-4000-8000-000000000003", network_id="other"
    )
    guest = support.guest(nics=[known, unknown])
    data = metadata.network_data(guest, vif.networks(guest.nics))
    assert [link["mtu"] for link in data["links"]] == [1442, 1442]
    first, second = data["networks"]
    assert (first["type"], first["ip_address"], first["netmask"]) == ("ipv4", "10.0.0.5", "255.255.255.0")
    assert (second["type"], second["link"], second["network_id"]) == ("ipv4_dhcp", "tapfedcba98-45", "other")
    assert data["services"] == [{"type": "dns", "address": "9.9.9.9"}]


def test_binding_is_not_part_of_the_hardware() -> None:
    guest = support.guest(nics=[nic()])
    other = structs.replace(guest, nics=[nic("bridge", vif_details={"bridge_name": "b"}, mtu=9000)])
    assert guest.has_same_hardware(other)
