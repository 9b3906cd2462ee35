"""Builds guests, destroys them, and changes their metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from kilonova.hosts.drivers.base import DifferentGuest
from kilonova.hosts.drivers.libvirt import config_drive, devices, disks, encrypted_password, layout, metadata
from kilonova.hosts.messages import Guest, GuestState, Transfer

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor


async def spawn(
    hv: Hypervisor, guest: Guest, *, start: bool = True, data: Transfer | None = None, disk_of: str = ""
) -> GuestState:
    """Build the guest. Every step detects the work of an earlier attempt, so a repeated call completes it."""
    await _claim(hv, guest, disk_of)
    if await hv.power(guest.id) not in ("running", "paused"):
        await _build(hv, guest, data, keep=bool(disk_of))
    if start:
        await hv.start(guest.id)
    return await hv.state(guest.id)


async def destroy(hv: Hypervisor, guest_id: str) -> None:
    """Remove the domain, and the files if this host owns them: on shared storage another host may run the guest."""
    from kilonova.hosts.drivers.libvirt import cold_moves

    await hv.undefine(guest_id)
    if not cold_moves.return_files(hv, guest_id):
        await hv.remove_files(guest_id)
    await cold_moves.remove_displaced(hv, guest_id)


async def set_metadata(
    hv: Hypervisor, guest_id: str, name: str, metadata: dict[str, str], forgetting: bool = False
) -> None:
    guest = encrypted_password.clear(hv, hv.spec(guest_id)) if forgetting else hv.spec(guest_id)
    hv.write_spec(structs.replace(guest, name=name, metadata=metadata))


async def _claim(hv: Hypervisor, guest: Guest, disk_of: str) -> None:
    """Make this host the owner of the guest's files and write the spec."""
    found, owner = hv.find_spec(guest.id), hv.owner(guest.id)
    if owner not in ("", hv.host):
        if owner != disk_of:
            message = f"the files of guest {guest.id} belong to host {owner}, which shares the storage"
            raise DifferentGuest(message)
        from kilonova.hosts.drivers.libvirt import cold_moves

        await cold_moves.take_over_files(hv, guest, disk_of)
    elif found is not None and not found.has_same_hardware(guest):
        raise DifferentGuest(f"guest {guest.id} exists already with another specification")
    elif found is None:
        # A domain with this id but without a spec is not this guest.
        await hv.undefine(guest.id)
    hv.set_owner(guest.id)
    hv.write_spec(guest)


async def _build(hv: Hypervisor, guest: Guest, data: Transfer | None, keep: bool) -> None:
    """`keep`: reuse an existing root disk, whatever image it was made from."""
    if not (keep and hv.layout.file(guest.id, layout.DISK).exists()):
        base = await hv.images.get(guest.image, data) if guest.image is not None else None
        await disks.build(hv.layout, guest, base)
    await finish_build(hv, guest)


async def finish_build(hv: Hypervisor, guest: Guest) -> None:
    """Define the domain of a guest whose disks exist, and build its config drive."""
    networks = await hv.wait_for_networks(guest)
    # The config drive contains device addresses, which the definition assigns.
    await hv.define(guest)
    if guest.config_drive:
        vendor = metadata.vendor_data(hv.config.libvirt.vendor_data)
        documents = metadata.documents(guest, networks, vendor=vendor, addresses=devices.read_addresses(hv, guest.id))
        await config_drive.build(hv.layout.file(guest.id, layout.CONFIG_DRIVE), documents)
