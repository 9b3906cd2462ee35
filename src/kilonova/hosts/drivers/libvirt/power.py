"""Powers guests on and off, reboots, pauses and suspends them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kilonova.hosts.drivers.base import NotRunning
from kilonova.hosts.drivers.libvirt import migration_records
from kilonova.hosts.drivers.libvirt.events import guest_events
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor, resume_domain
from kilonova.hosts.messages import GuestState

if TYPE_CHECKING:
    import libvirt

# An operating system that is still booting ignores the power button, so it is pressed again.
_BUTTON_RETRY_SECONDS = 10.0


async def on(hv: Hypervisor, guest_id: str) -> GuestState:
    await migration_records.reconcile_guest(hv, guest_id)  # a migrated guest must not run on both hosts
    guest = hv.spec(guest_id)
    match await hv.power(guest_id):
        case "running":
            pass
        case "paused" | "suspended":
            await hv.wait_for_networks(guest)
            await hv.volumes.prepare_saved(guest)
            await hv.start(guest_id)
        case _:
            await hv.boot(guest_id)
    return await hv.state(guest_id)


async def off(hv: Hypervisor, guest_id: str, grace: float) -> GuestState:
    guest = hv.spec(guest_id)
    power = await hv.power(guest_id)
    if power == "running" and grace > 0:
        await _shut_down(hv, guest_id, grace)
    await hv.power_off(guest_id)
    if await hv.power(guest_id) == "crashed":
        # Only a new definition clears the crashed state.
        await hv.undefine(guest_id)
        await hv.define(guest)
    return await hv.state(guest_id)


async def reboot(hv: Hypervisor, guest_id: str, hard: bool) -> GuestState:
    """The domain is always redefined from the spec."""
    await migration_records.reconcile_guest(hv, guest_id)  # a migrated guest must not run on both hosts
    hv.spec(guest_id)
    if not hard and await hv.power(guest_id) == "running":
        await _shut_down(hv, guest_id, hv.config.compute.shutdown_timeout_seconds)
    await hv.power_off(guest_id)
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
    await migration_records.reconcile_guest(hv, guest_id)  # a migrated guest must not run on both hosts
    hv.spec(guest_id)
    power = await hv.power(guest_id)
    if power == "paused":
        domain = await hv.domain(guest_id)
        await hv.connection.run(resume_domain, domain)
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
        await hv.wait_for_networks(guest)
        await hv.volumes.prepare_saved(guest)
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
    """Press the ACPI power button and wait until the guest has stopped or the time is over."""
    end = time.monotonic() + seconds
    pressed_at = float("-inf")
    async with guest_events(hv.connection, guest_id) as events:
        while await hv.power(guest_id) == "running":
            now = time.monotonic()
            if now - pressed_at >= _BUTTON_RETRY_SECONDS:
                await hv.connection.call(_press_power_button, guest_id)
                pressed_at = now
            if not await events.wait(end - now):
                return


def _press_power_button(connection: libvirt.virConnect, guest_id: str) -> None:
    import libvirt

    try:
        connection.lookupByUUIDString(guest_id).shutdownFlags(libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
    except libvirt.libvirtError as error:
        # The guest may have stopped just now.
        if error.get_error_code() not in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
            raise


def _save(domain: libvirt.virDomain) -> None:
    import libvirt

    # Also a paused guest runs after it is resumed.
    domain.managedSave(libvirt.VIR_DOMAIN_SAVE_RUNNING)
