"""Records the bus addresses of a guest's devices, for the metadata of tagged devices."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from kilonova.hosts.drivers.libvirt import layout as names

if TYPE_CHECKING:
    import libvirt

    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor
    from kilonova.hosts.messages import Guest


def is_tagged(guest: Guest) -> bool:
    tags = [nic.tag for nic in guest.nics] + [disk.tag for disk in guest.disks]
    return any(tags + [disk.tag for disk in guest.local_disks or []])


async def record_addresses(hv: Hypervisor, guest: Guest) -> None:
    """Record the addresses of a guest with tagged devices. Called whenever its domain has changed."""
    from kilonova.hosts.drivers.libvirt.hypervisor import write_file

    if is_tagged(guest):
        found = await hv.connection.call(_addresses, guest.id)
        write_file(hv.layout.file(guest.id, names.DEVICE_ADDRESSES), orjson.dumps(found))


def read_addresses(hv: Hypervisor, guest_id: str) -> dict[str, str]:
    """Bus addresses by port id, volume id or file name of the disk."""
    try:
        found: dict[str, str] = orjson.loads(hv.layout.file(guest_id, names.DEVICE_ADDRESSES).read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    return found


def _addresses(connection: libvirt.virConnect, guest_id: str) -> dict[str, str]:
    document = ET.fromstring(connection.lookupByUUIDString(guest_id).XMLDesc())
    found = {}
    for device in document.findall("devices/*"):
        name, address = _name(device), device.find("address")
        if name and address is not None:
            found[name] = _address(address)
    return found


def _name(device: ET.Element) -> str:
    if device.tag == "interface":
        alias = device.find("alias")
        return str(alias.get("name", "")).removeprefix("ua-") if alias is not None else ""
    if device.tag == "disk":
        source = device.find("source")
        file = source.get("file", "") if source is not None else ""
        return device.findtext("serial") or Path(file).name
    return ""


def _address(address: ET.Element) -> str:
    """`0000:00:03.0` on a PCI bus, `0:0:1:0` on a disk controller."""
    if address.get("type") == "pci":
        domain, bus, slot, function = (
            int(address.get(part, "0"), 16) for part in ("domain", "bus", "slot", "function")
        )
        return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"
    return ":".join(address.get(part, "0") for part in ("controller", "bus", "target", "unit"))
