"""Rescue: the guest runs from another image with its own disks beside, until somebody has repaired them.

That a guest is in rescue is written beside its disks, so that whoever builds its domain anew, at a hard reboot or after
the host has booted, builds the one in rescue.

Stable is a rescue whose image says how its disk is to be attached (`hw_rescue_device`, `hw_rescue_bus`): everything
else of the guest keeps its place. Otherwise the rescue disk takes the place of the root, the guest's own disks come
after it, and volumes are left out, whose places these take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import config_drive, disks, metadata
from kilonova.hosts.drivers.libvirt.hypervisor import write
from kilonova.hosts.drivers.libvirt.layout import RESCUE, RESCUE_CONFIG_DRIVE, RESCUE_MODE, Layout
from kilonova.hosts.messages import Guest, GuestState, Image, Transfer

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

_DEVICES = {
    "disk": ("virtio", "scsi", "sata", "ide", "usb"),
    "cdrom": ("ide", "sata", "scsi", "usb"),
    "floppy": ("fdc",),
}


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """How a guest is in rescue. `config_drive`: whether it has one of its own, with the password of the rescue."""

    image_id: str
    stable: bool
    device: str
    bus: str
    config_drive: bool = False


def variation(layout: Layout, guest_id: str) -> Mode | None:
    """None: the guest is not in rescue. For `disks.files`."""
    try:
        return msgspec.msgpack.decode((layout.guest(guest_id) / RESCUE_MODE).read_bytes(), type=Mode)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise DriverError(f"how guest {guest_id} is in rescue cannot be read: {error}") from None


async def rescue(
    hv: Hypervisor, guest_id: str, image: Image | None, data: Transfer | None, password: str = ""
) -> GuestState:
    guest = hv.spec(guest_id)
    if variation(hv.layout, guest_id) is None:
        mode = await _prepare(hv, guest, image or guest.image, data, password)
        # Noted between two runs of the guest, so that what is noted and what runs are never at odds. Saved memory goes:
        # it is of another machine than the one that starts now.
        await hv.cut(guest_id)
        write(hv.layout.guest(guest_id) / RESCUE_MODE, msgspec.msgpack.encode(mode))
    return await _started(hv, guest_id)


async def unrescue(hv: Hypervisor, guest_id: str) -> GuestState:
    hv.spec(guest_id)
    if variation(hv.layout, guest_id) is not None:
        await hv.cut(guest_id)
        (hv.layout.guest(guest_id) / RESCUE_MODE).unlink()
    state = await _started(hv, guest_id)
    _drop(hv, guest_id)
    return state


async def _started(hv: Hypervisor, guest_id: str) -> GuestState:
    if await hv.power(guest_id) in ("running", "paused", "suspended"):
        await hv.start(guest_id)
    else:
        await hv.boot(guest_id)
    return await hv.state(guest_id)


async def _prepare(hv: Hypervisor, guest: Guest, image: Image | None, data: Transfer | None, password: str) -> Mode:
    """What the guest in rescue needs; nothing has changed for it yet."""
    if image is None:
        raise DriverError(f"guest {guest.id} boots from a volume: it needs an image to be rescued with")
    mode = _mode(guest, image, hv.config.libvirt.machine)
    directory = hv.layout.guest(guest.id)
    _drop(hv, guest.id)
    base = await hv.images.ensure(image, data)
    await disks.overlay(directory / RESCUE, base, base.virtual_size)
    if not (guest.config_drive and password):
        return mode
    vendor = metadata.vendor_data(hv.config.libvirt.vendor_data)
    told = metadata.documents(guest, await hv.wire(guest), vendor=vendor, password=password)
    await config_drive.build_at(directory / RESCUE_CONFIG_DRIVE, told)
    return msgspec.structs.replace(mode, config_drive=True)


def _mode(guest: Guest, image: Image, machine: str) -> Mode:
    told = image.properties
    stable = "hw_rescue_device" in told or "hw_rescue_bus" in told
    if guest.image is None and not stable:
        raise DriverError(
            f"guest {guest.id} boots from a volume: only an image with hw_rescue_device or hw_rescue_bus can rescue it"
        )
    device = told.get("hw_rescue_device") or ("cdrom" if image.disk_format == "iso" else "disk")
    if device not in _DEVICES:
        raise DriverError(f"hw_rescue_device of image {image.id} is {device!r}, and not one of {', '.join(_DEVICES)}")
    usual = {"disk": disks.disk_bus(guest), "cdrom": disks.cdrom_bus(guest, machine), "floppy": "fdc"}[device]
    bus = told.get("hw_rescue_bus") or usual
    if bus not in _DEVICES[device]:
        raise DriverError(f"hw_rescue_bus of image {image.id} is {bus!r}, where no {device} can be")
    return Mode(image_id=image.id, stable=stable, device=device, bus=bus)


def _drop(hv: Hypervisor, guest_id: str) -> None:
    for name in (RESCUE, RESCUE_CONFIG_DRIVE):
        (hv.layout.guest(guest_id) / name).unlink(missing_ok=True)
