"""The power of guests: on, off, again, halted and going on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kilonova.hosts.drivers.base import NotRunning
from kilonova.hosts.drivers.libvirt import arrivals
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor, go_on
from kilonova.hosts.drivers.libvirt.waiting import events_of
from kilonova.hosts.messages import GuestState

if TYPE_CHECKING:
    import libvirt

# A system that just boots does not notice the button; it is pressed again.
_PRESS_EVERY = 10.0


async def on(hv: Hypervisor, guest_id: str) -> GuestState:
    await arrivals.settle_guest(hv, guest_id)  # it must not run where it was, and where it went to
    guest = hv.spec(guest_id)
    match await hv.power(guest_id):
        case "running":
            pass
        case "paused" | "suspended":
            await hv.wire(guest)
            await hv.start(guest_id)
        case _:
            await hv.boot(guest_id)
    return await hv.state(guest_id)


async def off(hv: Hypervisor, guest_id: str, grace: float) -> GuestState:
    guest = hv.spec(guest_id)
    power = await hv.power(guest_id)
    if power == "running" and grace > 0:
        await _shut_down(hv, guest_id, grace)
    await hv.cut(guest_id)
    if await hv.power(guest_id) == "crashed":
        # Only a new domain forgets how the last run of the old one ended.
        await hv.undefine(guest_id)
        await hv.define(guest)
    return await hv.state(guest_id)


async def reboot(hv: Hypervisor, guest_id: str, hard: bool) -> GuestState:
    """Whatever became of the domain, it is built anew from what is written down."""
    await arrivals.settle_guest(hv, guest_id)  # it must not run where it was, and where it went to
    hv.spec(guest_id)
    if not hard and await hv.power(guest_id) == "running":
        await _shut_down(hv, guest_id, hv.config.compute.shutdown_seconds)
    await hv.cut(guest_id)
    await hv.boot(guest_id)
    return await hv.state(guest_id)


async def pause(hv: Hypervisor, guest_id: str) -> GuestState:
    hv.spec(guest_id)
    power = await hv.power(guest_id)
    if power == "running":
        domain = await hv.domain(guest_id)
        await hv.connection.run(domain.suspend)
    elif power != "paused":
        raise NotRunning(guest_id)
    return await hv.state(guest_id)


async def unpause(hv: Hypervisor, guest_id: str) -> GuestState:
    await arrivals.settle_guest(hv, guest_id)  # it must not run where it was, and where it went to
    hv.spec(guest_id)
    power = await hv.power(guest_id)
    if power == "paused":
        domain = await hv.domain(guest_id)
        await hv.connection.run(go_on, domain)
    elif power != "running":
        raise NotRunning(guest_id)
    return await hv.state(guest_id)


async def suspend(hv: Hypervisor, guest_id: str) -> GuestState:
    hv.spec(guest_id)
    power = await hv.power(guest_id)
    if power in ("running", "paused"):
        domain = await hv.domain(guest_id)
        await hv.connection.run(_save, domain, stop=domain.abortJob)
    elif power != "suspended":
        raise NotRunning(guest_id)
    return await hv.state(guest_id)


async def resume(hv: Hypervisor, guest_id: str) -> GuestState:
    guest = hv.spec(guest_id)
    power = await hv.power(guest_id)
    if power == "suspended":
        await hv.wire(guest)
        await hv.start(guest_id)
    elif power != "running":
        raise NotRunning(guest_id)
    return await hv.state(guest_id)


async def crash_dump(hv: Hypervisor, guest_id: str) -> None:
    hv.spec(guest_id)
    if await hv.power(guest_id) != "running":
        raise NotRunning(guest_id)
    domain = await hv.domain(guest_id)
    await hv.connection.run(domain.injectNMI)


async def _shut_down(hv: Hypervisor, guest_id: str, seconds: float) -> None:
    """Press the button and wait; what becomes of it is seen afterwards."""
    end = time.monotonic() + seconds
    pressed = float("-inf")
    async with events_of(hv.connection, guest_id) as events:
        while await hv.power(guest_id) == "running":
            now = time.monotonic()
            if now - pressed >= _PRESS_EVERY:
                await hv.connection.ask(_press, guest_id)
                pressed = now
            if not await events.next(end - now):
                return


def _press(connection: libvirt.virConnect, guest_id: str) -> None:
    import libvirt

    try:
        connection.lookupByUUIDString(guest_id).shutdownFlags(libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
    except libvirt.libvirtError as error:
        # It may have ended in this moment.
        if error.get_error_code() not in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
            raise


def _save(domain: libvirt.virDomain) -> None:
    import libvirt

    # Whether it was paused or not, it goes on when it is resumed.
    domain.managedSave(libvirt.VIR_DOMAIN_SAVE_RUNNING)
