"""Rescue: the guest boots from another image, with its own disks attached for repair.

The mode is a file beside the disks, so that a hard reboot or a reboot of the host starts the guest in rescue again.

In a stable device rescue the image has the properties `hw_rescue_device` or `hw_rescue_bus`, and all other disks keep
their device names. Otherwise the rescue disk replaces the root disk, the guest's own disks follow it, and volumes are
not attached, because the local disks take their device names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import config_drive, disks, metadata
from kilonova.hosts.drivers.libvirt.hypervisor import write_file
from kilonova.hosts.drivers.libvirt.layout import RESCUE_CONFIG_DRIVE, RESCUE_DISK, RESCUE_MODE, Layout
from kilonova.hosts.messages import Guest, GuestState, Image, Transfer

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

_BUSES = {"disk": ("virtio", "scsi", "sata", "ide", "usb"), "cdrom": ("ide", "sata", "scsi", "usb"), "floppy": ("fdc",)}


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """How a guest is rescued. `config_drive`: the rescue has its own config drive, with the admin password."""

    image_id: str
    stable: bool
    device: str
    bus: str
    config_drive: bool = False


def read_mode(layout: Layout, guest_id: str) -> Mode | None:
    """The rescue mode, for `disks.disk_files`; None if the guest is not in rescue."""
    try:
        return msgspec.msgpack.decode((layout.guest_directory(guest_id) / RESCUE_MODE).read_bytes(), type=Mode)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise DriverError(f"the rescue mode of guest {guest_id} cannot be read: {error}") from None


async def rescue(
    hv: Hypervisor, guest_id: str, image: Image | None, data: Transfer | None, password: str = ""
) -> GuestState:
    guest = hv.spec(guest_id)
    if read_mode(hv.layout, guest_id) is None:
        mode = await _prepare(hv, guest, image or guest.image, data, password)
        # The mode is written while the guest is off, so that it always matches the running domain. Powering off deletes
        # saved memory, which would not fit the rescue domain.
        await hv.power_off(guest_id)
        write_file(hv.layout.guest_directory(guest_id) / RESCUE_MODE, msgspec.msgpack.encode(mode))
    return await _start(hv, guest_id)


async def unrescue(hv: Hypervisor, guest_id: str) -> GuestState:
    hv.spec(guest_id)
    if read_mode(hv.layout, guest_id) is not None:
        await hv.power_off(guest_id)
        (hv.layout.guest_directory(guest_id) / RESCUE_MODE).unlink()
    state = await _start(hv, guest_id)
    _remove_files(hv, guest_id)
    return state


async def _start(hv: Hypervisor, guest_id: str) -> GuestState:
    if await hv.power(guest_id) in ("running", "paused", "suspended"):
        await hv.start(guest_id)
    else:
        await hv.boot(guest_id)
    return await hv.state(guest_id)


async def _prepare(hv: Hypervisor, guest: Guest, image: Image | None, data: Transfer | None, password: str) -> Mode:
    """Make the files of the rescue. The guest is still unchanged."""
    if image is None:
        raise DriverError(f"guest {guest.id} boots from a volume: its rescue requires an image")
    mode = _mode(guest, image, hv.config.libvirt.machine_type)
    directory = hv.layout.guest_directory(guest.id)
    _remove_files(hv, guest.id)
    base = await hv.images.get(image, data)
    await disks.create_overlay(directory / RESCUE_DISK, base, base.virtual_size)
    if not (guest.config_drive and password):
        return mode
    vendor = metadata.vendor_data(hv.config.libvirt.vendor_data)
    documents = metadata.documents(guest, await hv.wait_for_networks(guest), vendor=vendor, password=password)
    await config_drive.build(directory / RESCUE_CONFIG_DRIVE, documents)
    return msgspec.structs.replace(mode, config_drive=True)


def _mode(guest: Guest, image: Image, machine: str) -> Mode:
    properties = image.properties
    stable = "hw_rescue_device" in properties or "hw_rescue_bus" in properties
    if guest.image is None and not stable:
        raise DriverError(
            f"guest {guest.id} boots from a volume: only an image with hw_rescue_device or hw_rescue_bus can rescue it"
        )
    device = properties.get("hw_rescue_device") or ("cdrom" if image.disk_format == "iso" else "disk")
    if device not in _BUSES:
        raise DriverError(f"hw_rescue_device of image {image.id} is {device!r}, not one of {', '.join(_BUSES)}")
    default = {"disk": disks.disk_bus(guest), "cdrom": disks.cdrom_bus(guest, machine), "floppy": "fdc"}[device]
    bus = properties.get("hw_rescue_bus") or default
    if bus not in _BUSES[device]:
        raise DriverError(f"hw_rescue_bus of image {image.id} is {bus!r}, which does not support device type {device}")
    return Mode(image_id=image.id, stable=stable, device=device, bus=bus)


def _remove_files(hv: Hypervisor, guest_id: str) -> None:
    for name in (RESCUE_DISK, RESCUE_CONFIG_DRIVE):
        (hv.layout.guest_directory(guest_id) / name).unlink(missing_ok=True)
