"""Ports of guests that come and go while these run."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from msgspec import structs

from kilonova.hosts.drivers.base import DriverError, NotRunning
from kilonova.hosts.drivers.libvirt import devices
from kilonova.hosts.drivers.libvirt import domain as domains
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor
from kilonova.hosts.drivers.libvirt.waiting import events_of
from kilonova.hosts.messages import Guest, GuestState, Nic

if TYPE_CHECKING:
    import libvirt

# How long a guest's system has to let a device go, and how often it is asked meanwhile.
LET_GO_SECONDS = 30.0
_ASK_EVERY = 5.0


async def attach(hv: Hypervisor, guest_id: str, nic: Nic) -> GuestState:
    guest = hv.spec(guest_id)
    changed = guest
    if all(one.port_id != nic.port_id for one in guest.nics):
        changed = structs.replace(guest, nics=[*guest.nics, nic])
    match await hv.power(guest_id):
        case "running" | "paused":
            await hv.wire(changed)
            await hv.connection.ask(_plug, guest_id, domains.nic(hv, guest, nic), nic.mac)
            await devices.note(hv, changed)
        case "suspended":
            raise NotRunning(guest_id)
    # Last: a guest that did not get it has it not, and a repeat finds it in the domain. One that stands still is built
    # anew when it starts.
    hv.write_spec(changed)
    return await hv.state(guest_id)


async def detach(hv: Hypervisor, guest_id: str, port_id: str) -> GuestState | None:
    guest = hv.find_spec(guest_id)
    if guest is None:
        return None
    nic = next((one for one in guest.nics if one.port_id == port_id), None)
    if nic is not None:
        left = structs.replace(guest, nics=[one for one in guest.nics if one.port_id != port_id])
        match await hv.power(guest_id):
            case "running" | "paused":
                await _let_go(hv, guest, nic)
            case "suspended":
                raise NotRunning(guest_id)
        hv.write_spec(left)
    return await hv.state(guest_id)


async def _let_go(hv: Hypervisor, guest: Guest, nic: Nic) -> None:
    """Ask the guest's system until the device is gone."""
    end = time.monotonic() + LET_GO_SECONDS
    asked = float("-inf")
    async with events_of(hv.connection, guest.id) as events:
        while await hv.connection.ask(_live, guest.id, nic.mac) is not None:
            if time.monotonic() - asked >= _ASK_EVERY:
                await hv.connection.ask(_unplug, guest.id, nic.mac)
                asked = time.monotonic()
            if not await events.next(end - time.monotonic()):
                raise DriverError(f"the system in guest {guest.id} does not let the interface {nic.mac} go")
    await hv.connection.ask(_forget, guest.id, nic.mac)


# In threads. A port is known by its address, which libvirt shows in whatever form the element was given.


def _plug(connection: libvirt.virConnect, guest_id: str, element: ET.Element, mac: str) -> None:
    import libvirt

    domain = connection.lookupByUUIDString(guest_id)
    document = ET.tostring(element, encoding="unicode")
    for flag, inactive in ((libvirt.VIR_DOMAIN_AFFECT_LIVE, 0), (libvirt.VIR_DOMAIN_AFFECT_CONFIG, _inactive())):
        if _interface(domain, mac, inactive) is None:
            domain.attachDeviceFlags(document, flag)


def _unplug(connection: libvirt.virConnect, guest_id: str, mac: str) -> None:
    import libvirt

    domain = connection.lookupByUUIDString(guest_id)
    element = _interface(domain, mac, 0)
    if element is None:
        return
    try:
        domain.detachDeviceFlags(ET.tostring(element, encoding="unicode"), libvirt.VIR_DOMAIN_AFFECT_LIVE)
    except libvirt.libvirtError as error:
        # Gone in this moment, or the guest is still being asked.
        if error.get_error_code() not in (libvirt.VIR_ERR_DEVICE_MISSING, libvirt.VIR_ERR_OPERATION_FAILED):
            raise


def _forget(connection: libvirt.virConnect, guest_id: str, mac: str) -> None:
    import libvirt

    domain = connection.lookupByUUIDString(guest_id)
    element = _interface(domain, mac, _inactive())
    if element is not None:
        domain.detachDeviceFlags(ET.tostring(element, encoding="unicode"), libvirt.VIR_DOMAIN_AFFECT_CONFIG)


def _live(connection: libvirt.virConnect, guest_id: str, mac: str) -> ET.Element | None:
    from kilonova.hosts.drivers.libvirt.hypervisor import look_up

    domain = look_up(connection, guest_id)
    # A guest that has ended meanwhile has no devices.
    return _interface(domain, mac, 0) if domain is not None and domain.isActive() else None


def _interface(domain: libvirt.virDomain, mac: str, flags: int) -> ET.Element | None:
    for element in ET.fromstring(domain.XMLDesc(flags)).findall("devices/interface"):
        address = element.find("mac")
        if address is not None and str(address.get("address")).lower() == mac.lower():
            return element
    return None


def _inactive() -> int:
    import libvirt

    return int(libvirt.VIR_DOMAIN_XML_INACTIVE)
