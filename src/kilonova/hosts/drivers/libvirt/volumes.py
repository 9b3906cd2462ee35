"""Volumes in guests: how a disk is told to libvirt, and how a guest gets, loses, swaps and sees the growth of one."""

from __future__ import annotations

import asyncio
import logging
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from kilonova.hosts.drivers.base import DriverError, MissingDisk, NotRunning
from kilonova.hosts.drivers.libvirt import live_disks, reconnecting
from kilonova.hosts.drivers.libvirt.live_disks import Place
from kilonova.hosts.messages import Disk, Guest

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.connection import Event
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

log = logging.getLogger(__name__)

GIB = 1 << 30
# Which bus a device has by its name, where nobody says.
_BUSES = {"vd": "virtio", "sd": "scsi", "hd": "ide", "fd": "fdc", "xv": "xen"}
_DEVICES = ("disk", "cdrom", "floppy", "lun")
_FILES = ("kilonova_file", "local")
# What QEMU reaches by itself.
_CLIENTS = ("nbd", "rbd", "iscsi", *_FILES)
# A guest that does not let a disk go is asked again every so many seconds, and given up after as many tries.
DETACH_SECONDS = 10.0
DETACH_TRIES = 6
_LOOK_SECONDS = 0.2
# Kept with the disk that a guest is about to lose to another one, until it is settled which of them it has.
_SWAPPING = "swapping"


# What libvirt is told


def element(disk: Disk, target: str, bus: str = "") -> ET.Element:
    """The disk under the guest's name for it. Raises DriverError where this host cannot reach such a volume."""
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
    kind, data = _kind(disk), _data(disk)
    try:
        if kind == "nbd":
            return "network", _nbd(data)
        if kind in _FILES:
            return "file", ET.Element("source", file=str(data["device_path"]))
        if kind == "rbd":
            return "network", _rbd(data)
        if kind == "iscsi":
            return "network", _iscsi(data)
    except (KeyError, IndexError, ValueError, TypeError):
        raise DriverError(f"volume {disk.volume_id} is said to be reached by {kind}, but not how") from None
    if path := data.get("device_path"):
        return "block", ET.Element("source", dev=str(path))
    raise _unreachable(disk)


def _nbd(data: dict[str, Any]) -> ET.Element:
    source = ET.Element("source", protocol="nbd", name=str(data["export"]))
    if data.get("tls"):
        # The certificates are those that qemu.conf names.
        source.set("tls", "yes")
    ET.SubElement(source, "host", name=str(data["host"]), port=str(int(data["port"])))
    # Old releases of libvirt pass over it; for those there is `reconnecting`.
    ET.SubElement(source, "reconnect", delay=str(reconnecting.SECONDS))
    return source


def _rbd(data: dict[str, Any]) -> ET.Element:
    source = ET.Element("source", protocol="rbd", name=str(data["name"]))
    for host, port in zip(data["hosts"], data["ports"], strict=True):
        ET.SubElement(source, "host", name=str(host).strip("[]"), port=str(int(port)))
    return source


def _iscsi(data: dict[str, Any]) -> ET.Element:
    host, _, port = str(data["target_portal"]).rpartition(":")
    source = ET.Element("source", protocol="iscsi", name=f"{data['target_iqn']}/{int(data.get('target_lun') or 0)}")
    ET.SubElement(source, "host", name=host.strip("[]"), port=str(int(port)))
    return source


def _add_auth(source: ET.Element, disk: Disk) -> None:
    """By a secret that libvirt has: the operator's for rbd, ours for iscsi (see `Volumes.prepare`)."""
    protocol, data = source.get("protocol"), _data(disk)
    if protocol == "rbd" and data.get("auth_enabled") and data.get("secret_uuid"):
        auth = ET.SubElement(source, "auth", username=str(data.get("auth_username") or ""))
        ET.SubElement(auth, "secret", type="ceph", uuid=str(data["secret_uuid"]))
    if protocol == "iscsi" and data.get("auth_method") == "CHAP":
        auth = ET.SubElement(source, "auth", username=str(data.get("auth_username") or ""))
        ET.SubElement(auth, "secret", type="iscsi", usage=_usage(disk))


def _usage(disk: Disk) -> str:
    return f"kilonova-{disk.volume_id}"


def _kind(disk: Disk) -> str:
    return str(disk.connection.get("driver_volume_type") or "")


def _data(disk: Disk) -> dict[str, Any]:
    data = disk.connection.get("data")
    return data if isinstance(data, dict) else {}


def _format(disk: Disk) -> str:
    return "qcow2" if _data(disk).get("format") == "qcow2" else "raw"


def check_tls(hv: Hypervisor, disks: Iterable[Disk]) -> None:
    """Refuse volumes that QEMU here has no certificates for, before it is told of them."""
    for disk in disks:
        if _kind(disk) == "nbd" and _data(disk).get("tls") and not hv.config.libvirt.nbd_tls:
            raise DriverError(
                f"volume {disk.volume_id} is reached by TLS, for which {hv.host} has no certificates: libvirt.nbd_tls"
                " is off"
            )


def place_of(disk: Disk) -> Place:
    """Where the content is."""
    return live_disks.place(_source(disk)[1])


class Volumes:
    """What happens to the volumes of this host's guests. The guest's spec is kept in step."""

    def __init__(self, hv: Hypervisor) -> None:
        self._hv = hv
        self._steadying: set[asyncio.Task[None]] = set()
        hv.connection.on_event(self._noticed)

    # Guests that start

    async def prepare(self, guest: Guest) -> Guest:
        """The guest with volumes that libvirt can be told of; for before it is defined. Idempotent."""
        check_tls(self._hv, guest.disks)
        disks = [await self._connected(disk) for disk in guest.disks]
        return guest if disks == guest.disks else msgspec.structs.replace(guest, disks=disks)

    async def steady(self, guest_id: str) -> None:
        """Have a running guest wait for the volume service, should that be away, rather than fail.

        This is done for every guest that starts or comes, but a moment later; a caller who starts one may want it now.
        """
        await self._hv.connection.ask(live_disks.steady, guest_id)

    def _noticed(self, event: Event) -> None:
        """Wherever a guest came from, and whoever started it; and all of them when we start ourselves."""
        if event.kind == "reconnected":
            self._begin(self._steady_all())
        elif event.kind == "lifecycle" and event.event in _starts():
            self._begin(self._steady_one(event.guest_id))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._steadying.add(task)
        task.add_done_callback(self._steadying.discard)

    async def _steady_one(self, guest_id: str) -> None:
        try:
            await self.steady(guest_id)
        except DriverError as error:
            log.warning("volumes of guest %s would not outlast the volume service: %s", guest_id, error.message)

    async def _steady_all(self) -> None:
        for guest_id in self._hv.layout.guests():
            await self._steady_one(guest_id)

    # Attach and detach

    async def attach(self, guest_id: str, disk: Disk) -> None:
        guest = self._hv.spec(guest_id)
        if await self._hv.power(guest_id) == "suspended":
            raise NotRunning(guest_id)
        check_tls(self._hv, [disk])
        disk = await self._connected(disk)
        name = await self._hv.connection.ask(live_disks.attach, guest_id, place_of(disk), self._builder(guest, disk))
        await self.steady(guest_id)
        # Under the same name from now on.
        self._hv.write_spec(_with(guest, msgspec.structs.replace(disk, device=f"/dev/{name}")))

    def _builder(self, guest: Guest, disk: Disk) -> Callable[[set[str]], ET.Element]:
        from kilonova.hosts.drivers.libvirt import domain
        from kilonova.hosts.drivers.libvirt.machine import machine_of

        bus = disk.bus or machine_of(self._hv.config.libvirt, guest).disk_bus
        return lambda taken: element(disk, domain.target(disk.device, bus, taken), bus)

    async def detach(self, guest_id: str, volume_id: str) -> None:
        guest = self._hv.spec(guest_id)
        disk = _find(guest, volume_id)
        if disk is None:
            return
        if await self._hv.power(guest_id) == "suspended":
            raise NotRunning(guest_id)
        disk = await self._connected(disk)
        await self._let_go(guest_id, volume_id, place_of(disk))
        await self._hv.connection.ask(live_disks.forget, guest_id, place_of(disk))
        await self._hv.connection.ask(live_disks.tidy, guest_id)
        await self._disconnected(disk)
        self._hv.write_spec(_without(guest, volume_id))

    async def _let_go(self, guest_id: str, volume_id: str, where: Place) -> None:
        """A running guest has to agree; it is asked several times, as one that still boots does not hear."""
        ask = self._hv.connection.ask
        for _ in range(DETACH_TRIES):
            if not await ask(live_disks.ask_back, guest_id, where):
                return
            end = time.monotonic() + DETACH_SECONDS
            while time.monotonic() < end:
                if not await ask(live_disks.has, guest_id, where):
                    return
                await asyncio.sleep(_LOOK_SECONDS)
        raise DriverError(
            f"the guest does not let volume {volume_id} go: its system does not answer, or keeps the disk in use"
        )

    # Swap and grow

    async def swap(self, guest_id: str, volume_id: str, disk: Disk) -> None:
        """The guest goes on meanwhile. The serial number that it knows stays that of the old volume until it stops."""
        guest, ask = self._hv.spec(guest_id), self._hv.connection.ask
        old = _find(guest, volume_id)
        if old is None:
            if _find(guest, disk.volume_id) is None:
                raise MissingDisk(guest_id, volume_id)
            return
        check_tls(self._hv, [disk])
        old, disk = await self._connected(old), await self._connected(disk)
        disk = msgspec.structs.replace(disk, device=old.device or disk.device)
        where, there = place_of(old), place_of(disk)
        made = element(disk, (disk.device or "vda").removeprefix("/dev/"), old.bus)
        if not await ask(partial(live_disks.has, later=True), guest_id, there):
            if await self._hv.power(guest_id) not in ("running", "paused"):
                raise NotRunning(guest_id)
            await self._check_room(guest_id, where, disk)
            # So that either is found by its id, wherever this ends.
            self._hv.write_spec(_swapped(guest, volume_id, _marked(old, disk)))
            copying = live_disks.Copying()
            await ask(live_disks.swap, guest_id, where, there, made, copying, stop=copying.stop)
            await self.steady(guest_id)
        await ask(live_disks.replace, guest_id, where, made)
        self._hv.write_spec(_swapped(guest, volume_id, disk))
        await ask(live_disks.tidy, guest_id)
        await self._disconnected(old)

    async def _check_room(self, guest_id: str, where: Place, disk: Disk) -> None:
        size = int(_data(disk).get("size") or 0) * GIB
        has = await self._hv.connection.ask(live_disks.capacity, guest_id, where)
        if 0 < size < has:
            raise DriverError(f"volume {disk.volume_id} has {size} bytes, and the one it shall replace {has}")

    async def grow(self, guest_id: str, volume_id: str, size_gb: int) -> None:
        disk = _find(self._hv.spec(guest_id), volume_id)
        if disk is None:
            raise MissingDisk(guest_id, volume_id)
        disk = await self._connected(disk)
        await self._extended(disk)
        await self._hv.connection.ask(live_disks.grow, guest_id, place_of(disk), size_gb * GIB)

    # What the host's kernel has to connect

    async def _connected(self, disk: Disk) -> Disk:
        """The disk with a device, where one is needed that only os-brick makes; secrets are given to libvirt."""
        data = _data(disk)
        if _kind(disk) == "iscsi" and data.get("auth_method") == "CHAP":
            await self._hv.connection.ask(live_disks.keep_secret, _usage(disk), str(data.get("auth_password") or ""))
        if _kind(disk) in _CLIENTS:
            return disk
        device = await asyncio.to_thread(_brick(disk).connect_volume, data)
        way = {**disk.connection, "data": {**data, "device_path": str(device["path"])}}
        return msgspec.structs.replace(disk, connection=way)

    async def _disconnected(self, disk: Disk) -> None:
        if _kind(disk) not in _CLIENTS:
            await asyncio.to_thread(_brick(disk).disconnect_volume, _data(disk), None, force=True)

    async def _extended(self, disk: Disk) -> None:
        if _kind(disk) not in _CLIENTS:
            await asyncio.to_thread(_brick(disk).extend_volume, _data(disk))


def _starts() -> tuple[int, ...]:
    """Events after which a guest may run with disks that we have not seen."""
    import libvirt

    return libvirt.VIR_DOMAIN_EVENT_STARTED, libvirt.VIR_DOMAIN_EVENT_RESUMED


def _brick(disk: Disk) -> Any:
    """What connects such a volume by the host's kernel."""
    try:
        from os_brick.initiator import connector  # type: ignore[import-not-found]
    except ImportError:
        raise _unreachable(disk) from None
    return connector.InitiatorConnector.factory(_kind(disk).upper(), "sudo", use_multipath=False)


def _unreachable(disk: Disk) -> DriverError:
    return DriverError(
        f"volume {disk.volume_id} is reached by {_kind(disk) or 'nothing'}, for which this host has no client: nbd,"
        " rbd, iscsi and files work as they are, and others with os-brick, which is not installed"
    )


# Specs


def _find(guest: Guest, volume_id: str) -> Disk | None:
    """Also one that a swap has left half given."""
    for disk in guest.disks:
        if disk.volume_id == volume_id:
            return disk
    others = (_other(disk) for disk in guest.disks)
    return next((msgspec.convert(other, Disk) for other in others if other.get("volume_id") == volume_id), None)


def _with(guest: Guest, disk: Disk) -> Guest:
    """In the place of an earlier word on the same volume, or last."""
    disks = [disk if one.volume_id == disk.volume_id else one for one in guest.disks]
    if disk not in disks:
        disks.append(disk)
    return msgspec.structs.replace(guest, disks=disks)


def _without(guest: Guest, volume_id: str) -> Guest:
    kept = [one for one in guest.disks if volume_id not in (one.volume_id, _other(one).get("volume_id"))]
    return msgspec.structs.replace(guest, disks=kept)


def _swapped(guest: Guest, volume_id: str, disk: Disk) -> Guest:
    """With the disk in the place of the one that had the volume, and nothing else of either."""
    disks: list[Disk] = []
    for one in guest.disks:
        if volume_id in (one.volume_id, _other(one).get("volume_id")):
            if disk not in disks:
                disks.append(disk)
        elif one.volume_id not in (disk.volume_id, _other(disk).get("volume_id")):
            disks.append(one)
    return msgspec.structs.replace(guest, disks=disks)


def _marked(old: Disk, new: Disk) -> Disk:
    way = {key: value for key, value in old.connection.items() if key != _SWAPPING}
    return msgspec.structs.replace(old, connection={**way, _SWAPPING: msgspec.to_builtins(new)})


def _other(disk: Disk) -> dict[str, Any]:
    other = disk.connection.get(_SWAPPING)
    return other if isinstance(other, dict) else {}
