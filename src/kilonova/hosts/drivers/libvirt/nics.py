"""Attaches and detaches ports of guests."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from msgspec import structs

from kilonova.hosts.drivers.base import DriverError, NotRunning
from kilonova.hosts.drivers.libvirt import devices, plug
from kilonova.hosts.drivers.libvirt import domain as domains
from kilonova.hosts.drivers.libvirt.events import guest_events
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor
from kilonova.hosts.messages import Guest, GuestState, Nic

if TYPE_CHECKING:
    import libvirt

# How long the guest's operating system may take to release a device, and how often the request is repeated.
DETACH_TIMEOUT_SECONDS = 30.0
_DETACH_RETRY_SECONDS = 5.0


async def attach(hv: Hypervisor, guest_id: str, nic: Nic) -> GuestState:
    guest = hv.spec(guest_id)
    changed = guest
    if all(other.port_id != nic.port_id for other in guest.nics):
        changed = structs.replace(guest, nics=[*guest.nics, nic])
    power = await hv.power(guest_id)
    if power == "suspended":
        raise NotRunning(guest_id)
    # The spec first: a detach undoes an attach that was interrupted or has failed.
    hv.write_spec(changed)
    if power in ("running", "paused"):
        await hv.wait_for_networks(changed)
        await _attach_live(hv, guest, nic)
        await devices.record_addresses(hv, changed)
    return await hv.state(guest_id)


async def detach(hv: Hypervisor, guest_id: str, port_id: str) -> GuestState | None:
    guest = hv.find_spec(guest_id)
    if guest is None:
        return None
    nic = next((nic for nic in guest.nics if nic.port_id == port_id), None)
    if nic is not None:
        changed = structs.replace(guest, nics=[other for other in guest.nics if other.port_id != port_id])
        match await hv.power(guest_id):
            case "running" | "paused":
                await _detach_live(hv, guest, nic)
            case "suspended":
                raise NotRunning(guest_id)
        await plug.unplug(hv, guest, [nic])
        hv.write_spec(changed)
    return await hv.state(guest_id)


async def _attach_live(hv: Hypervisor, guest: Guest, nic: Nic) -> None:
    if await hv.connection.call(_live_interface, guest.id, nic.mac) is None:
        await plug.plug(hv, guest, [nic])
    try:
        await hv.connection.call(_attach_device, guest.id, domains.nic_element(hv, guest, nic), nic.mac)
    except DriverError:
        if await hv.connection.call(_live_interface, guest.id, nic.mac) is None:
            await plug.unplug(hv, guest, [nic])
        raise


async def _detach_live(hv: Hypervisor, guest: Guest, nic: Nic) -> None:
    """Request the detach until the guest's operating system has released the device."""
    end = time.monotonic() + DETACH_TIMEOUT_SECONDS
    requested_at = float("-inf")
    async with guest_events(hv.connection, guest.id) as events:
        while await hv.connection.call(_live_interface, guest.id, nic.mac) is not None:
            if time.monotonic() - requested_at >= _DETACH_RETRY_SECONDS:
                await hv.connection.call(_request_detach, guest.id, nic.mac)
                requested_at = time.monotonic()
            if not await events.wait(end - time.monotonic()):
                raise DriverError(f"the operating system of guest {guest.id} does not release interface {nic.mac}")
    await hv.connection.call(_detach_from_config, guest.id, nic.mac)


# In threads. Interfaces are matched by MAC, ignoring case: libvirt keeps the case of the given XML.


def _attach_device(connection: libvirt.virConnect, guest_id: str, element: ET.Element, mac: str) -> None:
    import libvirt

    domain = connection.lookupByUUIDString(guest_id)
    document = ET.tostring(element, encoding="unicode")
    if _interface(domain, mac, 0) is None:
        domain.attachDeviceFlags(document, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    if _interface(domain, mac, libvirt.VIR_DOMAIN_XML_INACTIVE) is None:
        domain.attachDeviceFlags(document, libvirt.VIR_DOMAIN_AFFECT_CONFIG)


def _request_detach(connection: libvirt.virConnect, guest_id: str, mac: str) -> None:
    import libvirt

    domain = connection.lookupByUUIDString(guest_id)
    element = _interface(domain, mac, 0)
    if element is None:
        return
    try:
        domain.detachDeviceFlags(ET.tostring(element, encoding="unicode"), libvirt.VIR_DOMAIN_AFFECT_LIVE)
    except libvirt.libvirtError as error:
        # The device was just removed, or an earlier request is still pending.
        if error.get_error_code() not in (libvirt.VIR_ERR_DEVICE_MISSING, libvirt.VIR_ERR_OPERATION_FAILED):
            raise


def _detach_from_config(connection: libvirt.virConnect, guest_id: str, mac: str) -> None:
    import libvirt

    domain = connection.lookupByUUIDString(guest_id)
    element = _interface(domain, mac, libvirt.VIR_DOMAIN_XML_INACTIVE)
    if element is not None:
        domain.detachDeviceFlags(ET.tostring(element, encoding="unicode"), libvirt.VIR_DOMAIN_AFFECT_CONFIG)


def _live_interface(connection: libvirt.virConnect, guest_id: str, mac: str) -> ET.Element | None:
    from kilonova.hosts.drivers.libvirt.hypervisor import lookup_domain

    domain = lookup_domain(connection, guest_id)
    # A guest that has stopped meanwhile has no live devices.
    return _interface(domain, mac, 0) if domain is not None and domain.isActive() else None


def _interface(domain: libvirt.virDomain, mac: str, flags: int) -> ET.Element | None:
    for element in ET.fromstring(domain.XMLDesc(flags)).findall("devices/interface"):
        address = element.find("mac")
        if address is not None and str(address.get("address")).lower() == mac.lower():
            return element
    return None
