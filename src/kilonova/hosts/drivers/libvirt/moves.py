"""Guests that move while they stand still: put aside with their disks, taken out again, received from other hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from kilonova import clock
from kilonova.hosts import messages
from kilonova.hosts.drivers.base import DriverError, NoSuchSlot
from kilonova.hosts.drivers.libvirt import arrivals, building, disks, power, programs
from kilonova.hosts.drivers.libvirt import layout as names
from kilonova.hosts.drivers.libvirt.hypervisor import make_directory, write
from kilonova.hosts.drivers.libvirt.images import Base
from kilonova.hosts.drivers.libvirt.offers import expect, offer
from kilonova.hosts.drivers.libvirt.peers import Peer, fetch_base
from kilonova.hosts.messages import Disk, Guest, GuestState

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

# Of files that were adopted: whose they were, and what the guest was.
BEFORE = "before"
_RENOUNCED_AFTER = 24 * 3600.0
# How the name of a slot ends that holds what was in somebody's way.
_LEFT = ".left"

__all__ = ["adopt", "discard", "expect", "give_back", "offer", "park", "receive", "remove_left", "unpark"]


class Before(msgspec.Struct, frozen=True):
    host: str
    spec: bytes


async def park(hv: Hypervisor, guest_id: str, slot: str) -> GuestState:
    kept = hv.find_spec(guest_id, slot)
    if kept is None:
        kept = hv.spec(guest_id)
        if await hv.power(guest_id) in ("running", "paused"):
            raise DriverError(f"guest {guest_id} runs, so that it cannot be put aside")
        await hv.undefine(guest_id)
        hv.take(guest_id)
        hv.layout.guest(guest_id).rename(hv.layout.slot(guest_id, slot))
    return hv.state_of(kept, "shutdown", slot)


async def unpark(hv: Hypervisor, guest_id: str, slot: str, start: bool, disks: list[Disk] | None) -> GuestState:
    if hv.find_spec(guest_id, slot) is not None:
        await _make_way(hv, guest_id, slot)
        hv.layout.slot(guest_id, slot).rename(hv.layout.guest(guest_id))
    elif hv.find_spec(guest_id) is None:
        raise NoSuchSlot(guest_id, slot, hv.host)
    guest = hv.spec(guest_id)
    if disks is not None:
        guest = structs.replace(guest, disks=disks)
        hv.write_spec(guest)
    hv.take(guest_id)
    if not start:
        await hv.define(guest)
        return await power.off(hv, guest_id, 0.0)
    return await power.on(hv, guest_id)


async def discard(hv: Hypervisor, guest_id: str, slot: str) -> None:
    coming = arrivals.arriving(hv, guest_id, slot)
    if coming is None:
        await hv.remove_files(guest_id, slot)
        return
    await arrivals.turn_away(hv, guest_id)
    await arrivals.settle_guest(hv, guest_id)
    directory = hv.layout.guest(guest_id)
    if arrivals.arriving(hv, guest_id, slot) is None:
        return  # it has come: the slot is empty
    made_ready = arrivals.read(directory / arrivals.ARRIVING, arrivals.Arriving)
    if made_ready is not None and made_ready.slot == slot:
        await arrivals.remove(hv, directory)
    await arrivals.remove(hv, hv.layout.slot(guest_id, slot))


async def receive(
    hv: Hypervisor, guest: Guest, source: str, slot: str, start: bool, reach: dict[str, str]
) -> GuestState:
    """What the source keeps in the slot stays as it is: the guest gets copies."""
    found = hv.find_spec(guest.id)
    if found is not None and not found.same_machine(guest):
        raise DriverError(f"guest {guest.id} is there already, built otherwise", kind="guest differs")
    if found is None:
        await _copy(hv, guest, source, slot, reach)
        # From here on it is complete: a repeat has only to start it.
        hv.write_spec(guest)
    if await hv.power(guest.id) in ("running", "paused"):
        return await power.on(hv, guest.id) if start else await hv.state(guest.id)
    await building.complete(hv, guest)
    return await power.on(hv, guest.id) if start else await hv.state(guest.id)


async def adopt(hv: Hypervisor, guest: Guest, host: str) -> bool:
    """Whether the guest's disks, as it had them on a host that failed, are here too; then they are this host's.

    As long as the other one writes to them, this is refused.
    """
    directory = hv.layout.guest(guest.id)
    if hv.owner(guest.id) != host or not (directory / names.SPEC).exists():
        return False
    for file in disks.files(guest):
        path = directory / file.name
        if file.device == "disk" and path.exists():
            await _check_unused(path, file.format, guest.id, host)
    before = Before(host=host, spec=(directory / names.SPEC).read_bytes())
    write(directory / BEFORE, msgspec.msgpack.encode(before))
    (directory / arrivals.LEAVING).unlink(missing_ok=True)
    hv.take(guest.id)
    hv.write_spec(guest)
    return True


def give_back(hv: Hypervisor, guest_id: str) -> bool:
    """Whether the guest's files are not this host's to remove, since it had adopted them, or somebody from it.

    The one who adopted them removes them only when the one who had them before has: until then an evacuation may be
    undone, and the guest needs its disks again.
    """
    directory = hv.layout.guest(guest_id)
    try:
        before = msgspec.msgpack.decode((directory / BEFORE).read_bytes(), type=Before)
        age = clock.now() - (directory / BEFORE).stat().st_mtime
    except FileNotFoundError:
        return False
    if hv.owner(guest_id) == hv.host:
        if age > _RENOUNCED_AFTER:
            return False
        write(directory / names.SPEC, before.spec)
        write(directory / names.OWNER, before.host.encode())
        (directory / BEFORE).unlink()
        return True
    if before.host == hv.host:
        (directory / BEFORE).unlink()
    return True


async def _check_unused(path: Path, disk_format: str, guest_id: str, host: str) -> None:
    try:
        await programs.info(path, disk_format)
    except DriverError as error:
        if "lock" not in error.message:
            raise
        raise DriverError(f"guest {guest_id} still runs on {host}: its disk is in use there") from None


async def _make_way(hv: Hypervisor, guest_id: str, slot: str) -> None:
    """For what is in the slot. What another host has on storage that both see is put aside, for that one to remove."""
    directory = hv.layout.guest(guest_id)
    await hv.undefine(guest_id)
    if not directory.exists():
        return
    if hv.owns(guest_id):
        await arrivals.remove(hv, directory)
    else:
        directory.rename(hv.layout.slot(guest_id, slot + _LEFT))


async def remove_left(hv: Hypervisor, guest_id: str) -> None:
    """What another host has put aside for this one to remove."""
    for one, slot in list(hv.layout.slots()):
        if one == guest_id and slot.endswith(_LEFT):
            await hv.remove_files(guest_id, slot)


# Copies


async def _copy(hv: Hypervisor, guest: Guest, source: str, slot: str, reach: dict[str, str]) -> None:
    directory = hv.layout.guest(guest.id)
    if directory.exists() and not hv.owns(guest.id):
        raise DriverError(
            f"guest {guest.id} is on {hv.owner(guest.id)}, which shares its storage", kind="guest differs"
        )
    await arrivals.remove(hv, directory)  # what an earlier try has left
    make_directory(directory)
    hv.take(guest.id)
    kept = hv.layout.slot(guest.id, slot)
    if source == hv.host or hv.owner(guest.id, slot) == source:
        await _copy_here(guest, kept, directory, source, slot)
    else:
        await _fetch(hv, guest, Peer(hv, source, reach.get("disks", "")), slot)
    root = directory / names.DISK
    base = disks.base_of(root) if root.exists() else None
    if root.exists():
        await disks.grow_root(root, guest.flavor)
    await _fit(directory, guest)
    # What the guest has now and had not before.
    await disks.build(hv.layout, guest, Base(base or Path(), "raw", 0) if guest.image is not None else None)


async def _copy_here(guest: Guest, kept: Path, directory: Path, source: str, slot: str) -> None:
    try:
        messages.decode_guest((kept / names.SPEC).read_bytes())
    except FileNotFoundError:
        raise NoSuchSlot(guest.id, slot, source) from None
    for name in _wanted(guest):
        if (kept / name).exists():
            part = directory / f"{name}.part"
            await programs.run("cp", "--reflink=auto", "--sparse=always", kept / name, part)
            part.rename(directory / name)


async def _fetch(hv: Hypervisor, guest: Guest, peer: Peer, slot: str) -> None:
    there = await peer.find(f"/slots/{guest.id}/{slot}")
    for name in _wanted(guest):
        if name in there:
            await peer.fetch(f"/slots/{guest.id}/{slot}/{name}", hv.layout.file(guest.id, name))
    root = hv.layout.file(guest.id, names.DISK)
    base = disks.base_of(root) if root.exists() else None
    if base is not None:
        here = await fetch_base(hv, peer, base.name)
        if here != base:
            formatted = ("-f", "qcow2", "-F", here.suffix[1:], "-b", str(here))
            await programs.run("qemu-img", "rebase", "-u", *formatted, str(root))


def _wanted(guest: Guest) -> list[str]:
    return [*(file.name for file in disks.files(guest) if file.name != names.CONFIG_DRIVE), names.NVRAM]


async def _fit(directory: Path, guest: Guest) -> None:
    """Ephemeral disks grow where there is more of them now; swap of another size is made anew."""
    for name, disk in disks.local(guest):
        path, size = directory / name, disk.size_mb * disks.MIB
        if not path.exists() or path.stat().st_size == size:
            continue
        if name == names.SWAP:
            path.unlink()
        elif path.stat().st_size > size:
            raise DriverError(f"{name} has {path.stat().st_size} bytes, but is to have {size}: disks do not shrink")
        else:
            os.truncate(path, size)
