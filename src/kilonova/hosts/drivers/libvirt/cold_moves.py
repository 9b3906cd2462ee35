"""Moves of guests that do not run: cold migration and resize through slots, and evacuation on shared storage.

A slot keeps the spec and the disks of a guest while a move is under way.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from kilonova import clock
from kilonova.hosts import messages
from kilonova.hosts.drivers.base import DifferentGuest, DriverError, NoSuchSlot
from kilonova.hosts.drivers.libvirt import disks, lifecycle, move_tickets, plug, power, programs, qemu_img
from kilonova.hosts.drivers.libvirt import layout as names
from kilonova.hosts.drivers.libvirt import migration_records as records
from kilonova.hosts.drivers.libvirt.disk_transfer import Peer, fetch_base_image
from kilonova.hosts.drivers.libvirt.hypervisor import make_directory, write_file
from kilonova.hosts.drivers.libvirt.images import BaseImage
from kilonova.hosts.drivers.libvirt.move_tickets import StoredTicket
from kilonova.hosts.messages import Disk, Guest, GuestState, MoveTicket

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

# In the directory of an evacuated guest: the host that owned the files, and the guest's spec there.
PREVIOUS_OWNER_FILE = "before"
_RETURN_WINDOW_SECONDS = 24 * 3600.0
# Suffix of slots with files that another host has to remove.
_DISPLACED_SUFFIX = ".left"


class PreviousOwner(msgspec.Struct, frozen=True):
    host: str
    spec: bytes


async def park(hv: Hypervisor, guest_id: str, slot: str, ticket: MoveTicket | None) -> GuestState:
    guest = hv.find_spec(guest_id, slot)
    if guest is None:
        guest = hv.spec(guest_id)
        if await hv.power(guest_id) in ("running", "paused"):
            raise DriverError(f"guest {guest_id} is running: only a stopped guest can be moved to a slot")
        await hv.undefine(guest_id)
        hv.set_owner(guest_id)
        hv.layout.guest_directory(guest_id).rename(hv.layout.slot_directory(guest_id, slot))
    if ticket is not None:
        move_tickets.store(hv, guest_id, "parked", StoredTicket(slot, ticket.key))
    return hv.guest_state(guest, "shutdown", slot)


async def unpark(hv: Hypervisor, guest_id: str, slot: str, start: bool, disks: list[Disk] | None) -> GuestState:
    if hv.find_spec(guest_id, slot) is not None:
        await _displace(hv, guest_id, slot)
        hv.layout.slot_directory(guest_id, slot).rename(hv.layout.guest_directory(guest_id))
    elif hv.find_spec(guest_id) is None:
        raise NoSuchSlot(guest_id, slot, hv.host)
    guest = hv.spec(guest_id)
    if disks is not None:
        guest = structs.replace(guest, disks=disks)
        hv.write_spec(guest)
    hv.set_owner(guest_id)
    if not start:
        await hv.define(guest)
        return await power.off(hv, guest_id, 0.0)
    return await power.on(hv, guest_id)


async def discard(hv: Hypervisor, guest_id: str, slot: str) -> None:
    if records.find_incoming(hv, guest_id, slot) is None:
        await hv.remove_files(guest_id, slot)
        return
    await records.reject_incoming(hv, guest_id)
    await records.reconcile_guest(hv, guest_id)
    directory = hv.layout.guest_directory(guest_id)
    if records.find_incoming(hv, guest_id, slot) is None:
        return  # the guest has arrived, so the slot is empty
    await hv.volumes.connections.disconnect_all(guest_id)
    prepared = records.read_record(directory / records.INCOMING_FILE, records.IncomingGuest)
    if prepared is not None and prepared.slot == slot:
        await records.remove_directory(hv, directory)
    guest = hv.find_spec(guest_id, slot)
    if guest is not None:
        await plug.unplug(hv, guest, guest.nics)
    await records.remove_directory(hv, hv.layout.slot_directory(guest_id, slot))


async def receive(
    hv: Hypervisor,
    guest: Guest,
    source: str,
    slot: str,
    start: bool,
    reach: dict[str, str],
    ticket: MoveTicket | None,
) -> GuestState:
    """Build the guest from copies of the disks in the source's slot."""
    found = hv.find_spec(guest.id)
    if found is not None and not found.has_same_hardware(guest):
        raise DifferentGuest(f"guest {guest.id} exists already with another specification")
    if found is None:
        await _copy_disks(hv, guest, source, slot, reach.get("disks", ""), ticket)
        # The spec marks the copy as complete: a repeated call does not copy again.
        hv.write_spec(guest)
    if await hv.power(guest.id) in ("running", "paused"):
        return await power.on(hv, guest.id) if start else await hv.state(guest.id)
    await lifecycle.finish_build(hv, guest)
    return await power.on(hv, guest.id) if start else await hv.state(guest.id)


async def take_over_files(hv: Hypervisor, guest: Guest, host: str) -> bool:
    """Take over the files of a guest of a failed host that shares the storage. Returns whether there were files.

    Raises DriverError while the other host has the disks open.
    """
    directory = hv.layout.guest_directory(guest.id)
    if hv.owner(guest.id) != host or not (directory / names.SPEC).exists():
        return False
    for file in disks.disk_files(guest):
        path = directory / file.name
        if file.device == "disk" and path.exists():
            await _check_unused(path, file.format, guest.id, host)
    previous = PreviousOwner(host=host, spec=(directory / names.SPEC).read_bytes())
    write_file(directory / PREVIOUS_OWNER_FILE, msgspec.msgpack.encode(previous))
    (directory / records.OUTGOING_FILE).unlink(missing_ok=True)
    hv.set_owner(guest.id)
    hv.write_spec(guest)
    return True


def return_files(hv: Hypervisor, guest_id: str) -> bool:
    """Return the files of an evacuated guest to their previous owner instead of removing them. False: remove them.

    Until the previous owner has destroyed its guest, the evacuation may be undone and needs the disks again.
    """
    directory = hv.layout.guest_directory(guest_id)
    try:
        previous = msgspec.msgpack.decode((directory / PREVIOUS_OWNER_FILE).read_bytes(), type=PreviousOwner)
        age = clock.wall() - (directory / PREVIOUS_OWNER_FILE).stat().st_mtime
    except FileNotFoundError:
        return False
    if hv.owner(guest_id) == hv.host:
        if age > _RETURN_WINDOW_SECONDS:
            return False
        write_file(directory / names.SPEC, previous.spec)
        write_file(directory / names.OWNER, previous.host.encode())
        (directory / PREVIOUS_OWNER_FILE).unlink()
        return True
    if previous.host == hv.host:
        (directory / PREVIOUS_OWNER_FILE).unlink()
    return True


async def _check_unused(path: Path, disk_format: str, guest_id: str, host: str) -> None:
    try:
        await qemu_img.info(path, disk_format)
    except DriverError as error:
        if "lock" not in error.message:
            raise
        raise DriverError(f"guest {guest_id} still runs on {host}: its disk {path.name} is locked") from None


async def _displace(hv: Hypervisor, guest_id: str, slot: str) -> None:
    """Remove the guest that the one in the slot replaces. Files of another host are set aside for it to remove."""
    directory = hv.layout.guest_directory(guest_id)
    await hv.undefine(guest_id)
    if not directory.exists():
        return
    if hv.owns(guest_id):
        await records.remove_directory(hv, directory)
    else:
        directory.rename(hv.layout.slot_directory(guest_id, slot + _DISPLACED_SUFFIX))


async def remove_displaced(hv: Hypervisor, guest_id: str) -> None:
    """Remove the files that other hosts have set aside for this host."""
    for slot_guest_id, slot in list(hv.layout.slots()):
        if slot_guest_id == guest_id and slot.endswith(_DISPLACED_SUFFIX):
            await hv.remove_files(guest_id, slot)


# Copies


async def _copy_disks(
    hv: Hypervisor, guest: Guest, source: str, slot: str, url: str, ticket: MoveTicket | None
) -> None:
    directory = hv.layout.guest_directory(guest.id)
    if directory.exists() and not hv.owns(guest.id):
        raise DifferentGuest(f"the files of guest {guest.id} belong to {hv.owner(guest.id)}, which shares the storage")
    await records.remove_directory(hv, directory)  # of an earlier attempt
    make_directory(directory)
    hv.set_owner(guest.id)
    slot_directory = hv.layout.slot_directory(guest.id, slot)
    if source == hv.host or hv.owner(guest.id, slot) == source:
        await _copy_local(guest, slot_directory, directory, source, slot)
    else:
        await _download(hv, guest, Peer(hv, source, url, ticket.key if ticket is not None else ""), slot)
    root = directory / names.DISK
    base = disks.base_image(root) if root.exists() else None
    if root.exists():
        await disks.grow_root(root, guest.flavor)
    await _resize_local_disks(directory, guest)
    # Disks that the new flavor adds.
    await disks.build(hv.layout, guest, BaseImage(base or Path(), "raw", 0) if guest.image is not None else None)


async def _copy_local(guest: Guest, slot_directory: Path, directory: Path, source: str, slot: str) -> None:
    try:
        messages.decode_guest((slot_directory / names.SPEC).read_bytes())
    except FileNotFoundError:
        raise NoSuchSlot(guest.id, slot, source) from None
    for name in _file_names(guest):
        if (slot_directory / name).exists():
            part = directory / f"{name}.part"
            await programs.run("cp", "--reflink=auto", "--sparse=always", slot_directory / name, part)
            part.rename(directory / name)


async def _download(hv: Hypervisor, guest: Guest, peer: Peer, slot: str) -> None:
    disks_target = f"/slots/{guest.id}/{slot}"
    available = await peer.get_json(disks_target)
    for name in _file_names(guest):
        if name in available:
            await peer.download(f"{disks_target}/{name}", hv.layout.file(guest.id, name))
    root = hv.layout.file(guest.id, names.DISK)
    base = disks.base_image(root) if root.exists() else None
    if base is not None:
        local_base = await fetch_base_image(hv, peer, disks_target, base.name, guest.image)
        if local_base != base:
            options = ("-f", "qcow2", "-F", local_base.suffix[1:], "-b", str(local_base))
            await programs.run("qemu-img", "rebase", "-u", *options, str(root))


def _file_names(guest: Guest) -> list[str]:
    return [*(file.name for file in disks.disk_files(guest) if file.name != names.CONFIG_DRIVE), names.NVRAM]


async def _resize_local_disks(directory: Path, guest: Guest) -> None:
    """Grow ephemeral disks to their new size, and delete a swap disk of another size, which is then rebuilt."""
    for name, disk in disks.local_disks(guest):
        path, size = directory / name, disk.size_mb * disks.MIB
        if not path.exists() or path.stat().st_size == size:
            continue
        if name == names.SWAP:
            path.unlink()
        elif path.stat().st_size > size:
            raise DriverError(f"{name} has {path.stat().st_size} bytes and cannot shrink to {size}")
        else:
            os.truncate(path, size)
