"""Volumes of guests: builds their libvirt elements, and attaches, detaches, swaps and extends them."""

from __future__ import annotations

import asyncio
import logging
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kilonova.hosts.drivers.base import DriverError, MissingDisk, NotRunning
from kilonova.hosts.drivers.libvirt import live_disks, nbd_reconnect
from kilonova.hosts.drivers.libvirt.live_disks import Location
from kilonova.hosts.drivers.libvirt.volume_connections import VolumeConnections
from kilonova.hosts.messages import Disk, Guest

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.connection import Event
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

log = logging.getLogger(__name__)

GIB = 1 << 30
# The default bus, by the prefix of the device name.
_BUSES = {"vd": "virtio", "sd": "scsi", "hd": "ide", "fd": "fdc", "xv": "xen"}
_DEVICES = ("disk", "cdrom", "floppy", "lun")
_FILE_TYPES = ("kilonova_file", "local")
# Volume types that QEMU connects to by itself. For others os-brick gives the host a device or a file.
_QEMU_PROTOCOLS = ("nbd", "rbd", *_FILE_TYPES)
# A detach is requested this often, with this time between two requests.
DETACH_ATTEMPT_SECONDS = 10.0
DETACH_ATTEMPTS = 6
_POLL_SECONDS = 0.2
# During a swap, the key of the new disk in the old disk's connection.
_SWAP_KEY = "swapping"


# libvirt elements


def disk_element(disk: Disk, target: str, bus: str = "") -> ET.Element:
    """The libvirt element of the disk. Raises DriverError if this host cannot connect to such a volume."""
    device = disk.type if disk.type in _DEVICES else "disk"
    kind, source = _source(disk)
    found = ET.Element("disk", type=kind, device=device)
    ET.SubElement(found, "driver", name="qemu", type=_format(disk), cache="none", discard="unmap")
    _add_auth(source, disk)
    found.append(source)
    ET.SubElement(found, "target", dev=target, bus=disk.bus or bus or _BUSES.get(target[:2], "virtio"))
    if disk.read_only or device == "cdrom":
        ET.SubElement(found, "readonly")
    if disk.shared:
        ET.SubElement(found, "shareable")
    ET.SubElement(found, "serial").text = disk.volume_id
    return found


def _source(disk: Disk) -> tuple[str, ET.Element]:
    kind, data = _volume_type(disk), _connection_data(disk)
    try:
        if kind == "nbd":
            return "network", _nbd(data)
        if kind == "rbd":
            return "network", _rbd(data)
        if kind in _FILE_TYPES:
            return _file_or_device(str(data["device_path"]), missing="file")
    except (KeyError, IndexError, ValueError, TypeError):
        raise DriverError(f"the connection of volume {disk.volume_id} is incomplete for {kind}") from None
    if path := data.get("device_path"):
        return _file_or_device(str(path), missing="block")
    raise DriverError(f"volume {disk.volume_id} with connection type {kind!r} is not connected to this host")


def _file_or_device(path: str, missing: str) -> tuple[str, ET.Element]:
    """`missing`: the type if the path does not exist."""
    kind = ("block" if Path(path).is_block_device() else "file") if Path(path).exists() else missing
    return kind, ET.Element("source", {"dev" if kind == "block" else "file": path})


def _nbd(data: dict[str, Any]) -> ET.Element:
    source = ET.Element("source", protocol="nbd", name=str(data["export"]))
    if data.get("tls"):
        # libvirt takes the certificates from qemu.conf.
        source.set("tls", "yes")
    ET.SubElement(source, "host", name=str(data["host"]), port=str(int(data["port"])))
    # Old releases of libvirt ignore it; see `nbd_reconnect`.
    ET.SubElement(source, "reconnect", delay=str(nbd_reconnect.RECONNECT_SECONDS))
    return source


def _rbd(data: dict[str, Any]) -> ET.Element:
    source = ET.Element("source", protocol="rbd", name=str(data["name"]))
    for host, port in zip(data["hosts"], data["ports"], strict=True):
        ET.SubElement(source, "host", name=str(host).strip("[]"), port=str(int(port)))
    return source


def _add_auth(source: ET.Element, disk: Disk) -> None:
    """Refer to the operator's secret in libvirt."""
    data = _connection_data(disk)
    if source.get("protocol") == "rbd" and data.get("auth_enabled") and data.get("secret_uuid"):
        auth = ET.SubElement(source, "auth", username=str(data.get("auth_username") or ""))
        ET.SubElement(auth, "secret", type="ceph", uuid=str(data["secret_uuid"]))


def _volume_type(disk: Disk) -> str:
    return str(disk.connection.get("driver_volume_type") or "")


def _connection_data(disk: Disk) -> dict[str, Any]:
    data = disk.connection.get("data")
    return data if isinstance(data, dict) else {}


def _format(disk: Disk) -> str:
    return "qcow2" if _connection_data(disk).get("format") == "qcow2" else "raw"


def check_tls(hv: Hypervisor, disks: Iterable[Disk]) -> None:
    """Refuse NBD volumes with TLS if this host's QEMU has no certificates."""
    for disk in disks:
        if _volume_type(disk) == "nbd" and _connection_data(disk).get("tls") and not hv.config.libvirt.nbd_tls:
            raise DriverError(
                f"volume {disk.volume_id} requires TLS, but {hv.host} has no certificates: libvirt.nbd_tls is off"
            )


def disk_location(disk: Disk) -> Location:
    return live_disks.get_location(_source(disk)[1])


class Volumes:
    """Changes the volumes of this host's guests, and their specs with them."""

    def __init__(self, hv: Hypervisor) -> None:
        self._hv = hv
        self.connections = VolumeConnections(hv.host, hv.config, hv.layout.mounts)
        self._tasks: set[asyncio.Task[None]] = set()
        hv.connection.on_event(self._on_event)

    # Guests that start

    async def prepare(self, guest: Guest) -> Guest:
        """Connect the guest's volumes to this host before its domain is defined. Idempotent."""
        check_tls(self._hv, guest.disks)
        disks = [await self._connect(guest.id, disk) for disk in guest.disks]
        return guest if disks == guest.disks else msgspec.structs.replace(guest, disks=disks)

    async def prepare_saved(self, guest: Guest) -> None:
        """Connect the volumes of a guest that is paused or suspended. Idempotent.

        If the host has rebooted since the suspend, volumes may have other paths now than in the saved domain.
        """
        guest = await self.prepare(guest)
        sources = {disk.volume_id: (disk.device, *_source(disk)) for disk in guest.disks if disk.volume_id}
        await self._hv.connection.call(live_disks.update_saved, guest.id, sources)

    async def ensure_reconnect(self, guest_id: str) -> None:
        """Make a running guest wait for an unreachable volume service instead of seeing I/O errors.

        libvirt's events trigger this for every guest that starts or arrives, slightly later.
        """
        await self._hv.connection.call(live_disks.ensure_reconnect, guest_id)

    def _on_event(self, event: Event) -> None:
        if event.kind == "reconnected":
            self._start_task(self._ensure_reconnect_of_all())
        elif event.kind == "lifecycle" and event.event in _start_events():
            self._start_task(self._try_ensure_reconnect(event.guest_id))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try_ensure_reconnect(self, guest_id: str) -> None:
        try:
            await self.ensure_reconnect(guest_id)
        except DriverError as error:
            log.warning("volumes of guest %s will not reconnect to the volume service: %s", guest_id, error.message)

    async def _ensure_reconnect_of_all(self) -> None:
        for guest_id in self._hv.layout.guest_ids():
            await self._try_ensure_reconnect(guest_id)

    # Attach and detach

    async def attach(self, guest_id: str, disk: Disk) -> None:
        guest = self._hv.spec(guest_id)
        if await self._hv.power(guest_id) == "suspended":
            raise NotRunning(guest_id)
        check_tls(self._hv, [disk])
        disk = await self._connect(guest_id, disk)
        name = await self._hv.connection.call(
            live_disks.attach, guest_id, disk_location(disk), self._builder(guest, disk)
        )
        await self.ensure_reconnect(guest_id)
        # Keep the device name for later starts.
        self._hv.write_spec(_add_disk(guest, msgspec.structs.replace(disk, device=f"/dev/{name}")))

    def _builder(self, guest: Guest, disk: Disk) -> Callable[[set[str]], ET.Element]:
        from kilonova.hosts.drivers.libvirt import domain
        from kilonova.hosts.drivers.libvirt.hardware import guest_hardware

        bus = disk.bus or guest_hardware(self._hv.config.libvirt, guest).disk_bus
        return lambda taken: disk_element(disk, domain.choose_target(disk.device, bus, taken), bus)

    async def detach(self, guest_id: str, volume_id: str) -> None:
        guest = self._hv.spec(guest_id)
        record = self.connections.find(guest_id, volume_id)
        # The spec does not have the disk yet if an attach was interrupted.
        disk = _find_disk(guest, volume_id) if record is None else record.disk()
        if disk is None:
            return
        if await self._hv.power(guest_id) == "suspended":
            raise NotRunning(guest_id)
        # Without a connection of the host the guest does not have the volume. Its path may be another volume's now.
        is_there = _volume_type(disk) in _QEMU_PROTOCOLS or (record is not None and record.device is not None)
        await self._detach(guest_id, volume_id, disk_location(disk) if is_there else ())
        await self.connections.disconnect(guest_id, volume_id)
        self._hv.write_spec(_remove_disk(guest, volume_id))

    async def _detach(self, guest_id: str, volume_id: str, location: Location) -> None:
        await self._detach_live(guest_id, volume_id, location)
        await self._hv.connection.call(live_disks.detach_from_config, guest_id, volume_id, location)
        await self._hv.connection.call(live_disks.remove_unused_clients, guest_id)

    async def _detach_live(self, guest_id: str, volume_id: str, location: Location) -> None:
        """Request the detach several times: a guest that is still booting ignores the request."""
        call = self._hv.connection.call
        for _ in range(DETACH_ATTEMPTS):
            if not await call(live_disks.request_detach, guest_id, location):
                return
            end = time.monotonic() + DETACH_ATTEMPT_SECONDS
            while time.monotonic() < end:
                if not await call(live_disks.has_disk, guest_id, location):
                    return
                await asyncio.sleep(_POLL_SECONDS)
        raise DriverError(
            f"the guest does not release volume {volume_id}: its operating system does not respond or uses the disk"
        )

    # Swap and grow

    async def swap(self, guest_id: str, volume_id: str, disk: Disk) -> None:
        """Replace the volume while the guest runs. Until it stops, the guest sees the old volume's serial number."""
        guest, call = self._hv.spec(guest_id), self._hv.connection.call
        old = _find_disk(guest, volume_id)
        if old is None:
            if _find_disk(guest, disk.volume_id) is None:
                raise MissingDisk(guest_id, volume_id)
            # A swap that failed, or was interrupted at its end, has left the volume connected.
            await self.connections.disconnect(guest_id, volume_id)
            return
        check_tls(self._hv, [disk])
        old, disk = await self._connect(guest_id, old), await self._connect(guest_id, disk)
        disk = msgspec.structs.replace(disk, device=old.device or disk.device)
        old_location, location = disk_location(old), disk_location(disk)
        element = disk_element(disk, (disk.device or "vda").removeprefix("/dev/"), old.bus)
        if not await call(partial(live_disks.has_disk, later=True), guest_id, location):
            if await self._hv.power(guest_id) not in ("running", "paused"):
                raise NotRunning(guest_id)
            await self._check_size(guest_id, old_location, disk)
            # Both volumes can be found in the spec if the swap is interrupted.
            self._hv.write_spec(_replace_disk(guest, volume_id, _mark_swapping(old, disk)))
            control = live_disks.CopyControl()
            await call(live_disks.swap, guest_id, old_location, location, element, control, stop=control.stop)
            await self.ensure_reconnect(guest_id)
        await call(live_disks.replace, guest_id, old_location, element)
        self._hv.write_spec(_replace_disk(guest, volume_id, disk))
        await call(live_disks.remove_unused_clients, guest_id)
        await self.connections.disconnect(guest_id, old.volume_id)

    async def _check_size(self, guest_id: str, old_location: Location, disk: Disk) -> None:
        size = int(_connection_data(disk).get("size") or 0) * GIB
        old_size = await self._hv.connection.call(live_disks.capacity, guest_id, old_location)
        if 0 < size < old_size:
            raise DriverError(f"volume {disk.volume_id} has {size} bytes, fewer than the {old_size} of the old volume")

    async def grow(self, guest_id: str, volume_id: str, size_gb: int) -> None:
        disk = _find_disk(self._hv.spec(guest_id), volume_id)
        if disk is None:
            raise MissingDisk(guest_id, volume_id)
        disk = await self._connect(guest_id, disk)
        await self.connections.extend(guest_id, disk)
        await self._hv.connection.call(live_disks.grow, guest_id, disk_location(disk), size_gb * GIB)

    # Connections of the host

    async def _connect(self, guest_id: str, disk: Disk) -> Disk:
        """Connect the host, and add the path to the disk, unless QEMU connects by itself."""
        kind, data, settings = _volume_type(disk), _connection_data(disk), self._hv.config.libvirt
        if data.get("encrypted"):
            raise DriverError(f"volume {disk.volume_id} is encrypted, and encrypted volumes are not supported yet")
        if kind == "rbd" and data.get("auth_enabled") and settings.rbd_secret_uuid:
            own = {"secret_uuid": settings.rbd_secret_uuid, "auth_username": settings.rbd_user or data["auth_username"]}
            return msgspec.structs.replace(disk, connection={**disk.connection, "data": {**data, **own}})
        if kind == "local" and not Path(str(data.get("device_path"))).exists():
            raise DriverError(
                f"volume {disk.volume_id} has connection type 'local', but {self._hv.host} has no file or device"
                f" {data.get('device_path')}"
            )
        return disk if kind in _QEMU_PROTOCOLS else await self.connections.connect(guest_id, disk)


def _start_events() -> tuple[int, ...]:
    """Lifecycle events after which a guest may run with new disks."""
    import libvirt

    return libvirt.VIR_DOMAIN_EVENT_STARTED, libvirt.VIR_DOMAIN_EVENT_RESUMED


# Specs


def _find_disk(guest: Guest, volume_id: str) -> Disk | None:
    """Also finds the new volume of an interrupted swap."""
    for disk in guest.disks:
        if disk.volume_id == volume_id:
            return disk
    others = (_swap_target(disk) for disk in guest.disks)
    return next((msgspec.convert(other, Disk) for other in others if other.get("volume_id") == volume_id), None)


def _add_disk(guest: Guest, disk: Disk) -> Guest:
    """Add the disk, or replace the disk with the same volume."""
    disks = [disk if other.volume_id == disk.volume_id else other for other in guest.disks]
    if disk not in disks:
        disks.append(disk)
    return msgspec.structs.replace(guest, disks=disks)


def _remove_disk(guest: Guest, volume_id: str) -> Guest:
    disks = [disk for disk in guest.disks if volume_id not in (disk.volume_id, _swap_target(disk).get("volume_id"))]
    return msgspec.structs.replace(guest, disks=disks)


def _replace_disk(guest: Guest, volume_id: str, disk: Disk) -> Guest:
    """Put the disk in the position of the volume's disk, and drop other disks of either volume."""
    disks: list[Disk] = []
    for other in guest.disks:
        if volume_id in (other.volume_id, _swap_target(other).get("volume_id")):
            if disk not in disks:
                disks.append(disk)
        elif other.volume_id not in (disk.volume_id, _swap_target(disk).get("volume_id")):
            disks.append(other)
    return msgspec.structs.replace(guest, disks=disks)


def _mark_swapping(old: Disk, new: Disk) -> Disk:
    """The old disk with the new one recorded in its connection."""
    return msgspec.structs.replace(old, connection={**old.connection, _SWAP_KEY: msgspec.to_builtins(new)})


def _swap_target(disk: Disk) -> dict[str, Any]:
    target = disk.connection.get(_SWAP_KEY)
    return target if isinstance(target, dict) else {}
