"""How a port of a real Neutron is connected to its guest, read from the port's binding.

A port without a `vif_type` belongs to the built-in network service; `networks` connects it.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec import structs

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.networks import validation
from kilonova.hosts.messages import Nic, WiredNetwork, WiredSubnet

Kind = Literal["ovs", "ovs hybrid", "bridge", "tap"]

# Neutron and its agents expect these names, which end with the first 11 characters of the port's or network's id.
_ID_CHARACTERS = 11
_TAP, _PORT_BRIDGE, _NETWORK_BRIDGE = "tap", "qbr", "brq"
_INTEGRATION_BRIDGE = "br-int"
# Interface names have at most 15 characters. `.` and `..` are no names, and options begin with `-`.
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")
_DATAPATH = re.compile(r"[a-z0-9_-]{0,20}")
_MIN_MTU, _MAX_MTU = 68, 65535
# Features by which a guest leaves the checksums and the segmentation of its packets to the host.
_OFFLOADS = ("csum", "gso", "tso4", "tso6", "ecn", "ufo")


class Vif(NamedTuple):
    """`bridge`: the one to which libvirt connects the tap. `switch`: the bridge of Open vSwitch behind it."""

    kind: Kind
    port_id: str
    network_id: str
    mac: str
    tap: str
    bridge: str = ""
    switch: str = ""
    datapath: str = ""
    mtu: int = 0

    @property
    def is_in_user_space(self) -> bool:
        """Whether Open vSwitch reads packets from the tap as they are, without the kernel's offloads."""
        return self.datapath == "netdev"


def read(nic: Nic) -> Vif:
    """Check the port's binding. Raises DriverError. Names in it become part of commands that run as root."""
    if nic.vnic_type not in ("", "normal"):
        raise DriverError(f"port {nic.port_id} has vnic_type {nic.vnic_type!r}: this host supports normal ports only")
    kind = _kind(nic)
    details = nic.vif_details
    vif = Vif(
        kind=kind,
        port_id=nic.port_id,
        network_id=nic.network_id,
        mac=nic.mac,
        tap=_name(_TAP, nic.port_id),
        bridge=_bridge(kind, nic),
        switch=str(details.get("bridge_name") or _INTEGRATION_BRIDGE) if kind in ("ovs", "ovs hybrid") else "",
        datapath=str(details.get("datapath_type") or ""),
        mtu=nic.mtu,
    )
    checks = [(validation.ID, vif.port_id), (validation.MAC, vif.mac), (_INTERFACE, vif.tap), (_DATAPATH, vif.datapath)]
    checks += [(_INTERFACE, name) for name in (vif.bridge, vif.switch) if name]
    checks += [(validation.ID, vif.network_id)] if vif.network_id else []
    validation.check(checks, f"the binding of port {nic.port_id[:80]}", "a name")
    if vif.mtu and not _MIN_MTU <= vif.mtu <= _MAX_MTU:
        raise DriverError(f"the network of port {vif.port_id} has the MTU {vif.mtu}, not {_MIN_MTU} to {_MAX_MTU}")
    return vif


def networks(nics: Iterable[Nic]) -> list[WiredNetwork]:
    """The networks of ports of a real Neutron, for the guest's metadata."""
    found: dict[str, WiredNetwork] = {}
    for nic in nics:
        if nic.vif_type:
            network = found.get(nic.network_id, WiredNetwork(id=nic.network_id, mtu=nic.mtu))
            subnets = {subnet.cidr: subnet for subnet in (*network.subnets, *(nic.subnets or _dhcp_subnets(nic)))}
            found[nic.network_id] = structs.replace(network, subnets=list(subnets.values()))
    return list(found.values())


def _dhcp_subnets(nic: Nic) -> list[WiredSubnet]:
    """Stand for subnets that are unknown: the guest gets IPv4 addresses by DHCP, IPv6 addresses without being told."""
    return [WiredSubnet(id="", cidr=f"{address}/32") for address in nic.addresses if ":" not in address]


def connect(interface: ET.Element, vif: Vif, nic_model: str) -> None:
    """Connect libvirt's interface to the host's end of the port."""
    interface.set("type", "ethernet" if vif.kind == "tap" else "bridge")
    if vif.bridge:
        ET.SubElement(interface, "source", bridge=vif.bridge)
    if vif.kind == "ovs":
        virtual_port = ET.SubElement(interface, "virtualport", type="openvswitch")
        ET.SubElement(virtual_port, "parameters", interfaceid=vif.port_id)
    ET.SubElement(interface, "target", dev=vif.tap)
    if vif.mtu:
        ET.SubElement(interface, "mtu", size=str(vif.mtu))
    if vif.is_in_user_space and nic_model == "virtio":
        driver = interface.find("driver")
        if driver is None:
            driver = ET.SubElement(interface, "driver")
        ET.SubElement(driver, "host", dict.fromkeys(_OFFLOADS, "off"))


def _kind(nic: Nic) -> Kind:
    match nic.vif_type:
        case "ovs":
            return "ovs hybrid" if nic.vif_details.get("ovs_hybrid_plug") is True else "ovs"
        case "bridge":
            return "bridge"
        case "tap":
            return "tap"
    raise DriverError(f"port {nic.port_id} has vif_type {nic.vif_type!r}: this host supports ovs, bridge and tap")


def _bridge(kind: Kind, nic: Nic) -> str:
    given = str(nic.vif_details.get("bridge_name") or "")
    match kind:
        case "ovs":
            return given or _INTEGRATION_BRIDGE
        case "ovs hybrid":
            return _name(_PORT_BRIDGE, nic.port_id)
        case "bridge":
            return given or _name(_NETWORK_BRIDGE, nic.network_id)
        case "tap":
            return ""


def _name(prefix: str, ident: str) -> str:
    return prefix + ident[:_ID_CHARACTERS]
