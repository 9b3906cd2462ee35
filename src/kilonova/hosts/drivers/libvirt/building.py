"""Making guests, and removing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import config_drive, devices, disks, layout, metadata, sealed
from kilonova.hosts.messages import Guest, GuestState, Transfer

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor


async def spawn(
    hv: Hypervisor, guest: Guest, *, start: bool = True, data: Transfer | None = None, disk_of: str = ""
) -> GuestState:
    """Every part finds what an earlier try has done, so that a repeat completes it."""
    await _claim(hv, guest, disk_of)
    if await hv.power(guest.id) not in ("running", "paused"):
        await _build(hv, guest, data, keep=bool(disk_of))
    if start:
        await hv.start(guest.id)
    return await hv.state(guest.id)


async def destroy(hv: Hypervisor, guest_id: str) -> None:
    """The files only if they are this host's: on shared storage the guest may run on another one by now."""
    from kilonova.hosts.drivers.libvirt import moves

    await hv.undefine(guest_id)
    if not moves.give_back(hv, guest_id):
        await hv.remove_files(guest_id)
    await moves.remove_left(hv, guest_id)


async def set_metadata(
    hv: Hypervisor, guest_id: str, name: str, metadata: dict[str, str], forgetting: bool = False
) -> None:
    guest = sealed.forget(hv, hv.spec(guest_id)) if forgetting else hv.spec(guest_id)
    hv.write_spec(structs.replace(guest, name=name, metadata=metadata))


async def _claim(hv: Hypervisor, guest: Guest, disk_of: str) -> None:
    """The guest's place on this host, with what it shall be written down."""
    found, owner = hv.find_spec(guest.id), hv.owner(guest.id)
    if owner not in ("", hv.host):
        if owner != disk_of:
            message = f"the files of guest {guest.id} are those of host {owner}, which shares the storage"
            raise DriverError(message, kind="guest differs")
        from kilonova.hosts.drivers.libvirt import moves

        await moves.adopt(hv, guest, disk_of)
    elif found is not None and not found.same_machine(guest):
        raise DriverError(f"guest {guest.id} is there already, built otherwise", kind="guest differs")
    elif found is None:
        # Whatever has this id, nothing is written of it: it is not what shall be built.
        await hv.undefine(guest.id)
    hv.take(guest.id)
    hv.write_spec(guest)


async def _build(hv: Hypervisor, guest: Guest, data: Transfer | None, keep: bool) -> None:
    """`keep`: a root disk that is there is the guest's, whatever it was made of."""
    if not (keep and hv.layout.file(guest.id, layout.DISK).exists()):
        base = await hv.images.ensure(guest.image, data) if guest.image is not None else None
        await disks.build(hv.layout, guest, base)
    await complete(hv, guest)


async def complete(hv: Hypervisor, guest: Guest) -> None:
    """Of a guest that has its disks, what is made of what it is told, and its domain."""
    networks = await hv.wire(guest)
    # Before the config drive, which tells where the devices are.
    await hv.define(guest)
    if guest.config_drive:
        vendor = metadata.vendor_data(hv.config.libvirt.vendor_data)
        told = metadata.documents(guest, networks, vendor=vendor, addresses=devices.addresses(hv, guest.id))
        await config_drive.build_at(hv.layout.file(guest.id, layout.CONFIG_DRIVE), told)
