"""Connections of this host to volumes by os-brick: iSCSI, NVMe over Fabrics, Fibre Channel, NFS and others.

A record per guest and volume is written before the host connects, and removed after it has disconnected. So a killed
agent finds its connections, and a volume that another guest of the host uses stays connected. The record of a failed
disconnection is kept, and the agent tries again when it starts and before it connects the volume the next time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kilonova import clock
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import os_brick_process, programs
from kilonova.hosts.drivers.libvirt.os_brick_process import Request
from kilonova.hosts.messages import Disk
from kilonova.ids import new_id

if TYPE_CHECKING:
    from kilonova.config import Config

log = logging.getLogger(__name__)

_PROPERTIES_SECONDS = 60.0
# How long os-brick may take to read the properties, and the time between an unsuccessful attempt and the next.
_PROPERTIES_TIMEOUT_SECONDS = 20.0
_PROPERTIES_RETRY_SECONDS = 10.0
# The program that connects volumes of each type, and its package.
_PROGRAMS = {
    "iscsi": ("iscsiadm", "open-iscsi"),
    "iser": ("iscsiadm", "open-iscsi"),
    "nvmeof": ("nvme", "nvme-cli"),
    "nvme": ("nvme", "nvme-cli"),
    "nfs": ("mount.nfs", "nfs-common"),
}
# Types whose volumes are files of a mounted file system.
_MOUNTED = ("nfs", "glusterfs", "quobyte", "vzstorage", "scality")
_DEVICE_PATH = "device_path"
# Properties that locate a volume on its storage. All others may differ between attachments of one volume.
_LOCATION_PROPERTIES = {
    "target_iqn": "iqn",
    "target_iqns": "iqn",
    "target_lun": "lun",
    "target_luns": "lun",
    "target_portal": "portal",
    "target_portals": "portal",
    "nqn": "nqn",
    "target_nqn": "nqn",
    "target_wwn": "wwn",
    "target_wwns": "wwn",
    "vol_uuid": "uuid",
    "export": "export",
    "name": "name",
}


class Record(msgspec.Struct, frozen=True):
    """A connection for a guest. `device` is the result of os-brick; None until the host has connected."""

    guest_id: str
    volume_id: str
    connection: dict[str, Any]
    device: dict[str, Any] | None = None

    @property
    def kind(self) -> str:
        return str(self.connection.get("driver_volume_type") or "").lower()

    @property
    def data(self) -> dict[str, Any]:
        """The properties of the connection, without the path that an earlier connection has added."""
        data = self.connection.get("data") or {}
        return {key: value for key, value in data.items() if key != _DEVICE_PATH}

    @property
    def location(self) -> dict[str, set[str]]:
        """Locates the volume on its storage. Storage with several paths lists them in any order."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for key, name in _LOCATION_PROPERTIES.items():
            value = self.data.get(key)
            values = value if isinstance(value, list) else [value]
            found[name].update(str(item) for item in values if item is not None)
        return {name: values for name, values in found.items() if values}

    def is_elsewhere(self, other: Record) -> bool:
        """Whether the other record locates a volume in another place. In doubt it does not."""
        here, there = self.location, other.location
        return self.kind != other.kind or any(here[name].isdisjoint(there[name]) for name in here.keys() & there.keys())

    def disk(self) -> Disk:
        """The disk, with the path on this host if the host has connected."""
        data = self.data
        if self.device is not None:
            data[_DEVICE_PATH] = str(self.device["path"])
        return Disk(volume_id=self.volume_id, connection={**self.connection, "data": data})


class VolumeConnections:
    """`mounts` is the directory of mounted file systems, which QEMU's user must be able to enter."""

    def __init__(self, host: str, config: Config, mounts: Path) -> None:
        self._host = host
        self._config = config
        self._records = config.data_dir / "volume_connections"
        # Records of failed disconnections.
        self._left_over = self._records / "left_over"
        self._mounts = mounts
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._properties: dict[str, Any] | None = None
        self._properties_until = 0.0
        self._reading: asyncio.Task[None] | None = None

    # The host

    async def properties(self) -> dict[str, Any]:
        """What the volume service must know to let this host connect: initiator, NQN and others.

        Without an answer of os-brick these are the last known properties, or none: volumes that QEMU connects to by
        itself do not need them. Old properties are read again in the background, so that only the first caller waits.
        """
        if not is_installed() or os.geteuid() != 0:
            return {}
        if self._reading is None and clock.now() >= self._properties_until:
            self._reading = asyncio.create_task(self._read_properties())
        if self._properties is None and self._reading is not None:
            await asyncio.wait([self._reading])
        return self._properties or {}

    async def _read_properties(self) -> None:
        request = Request(verb="properties", host=self._host, ip=self._config.agent.address)
        try:
            async with asyncio.timeout(_PROPERTIES_TIMEOUT_SECONDS):
                self._properties = await self._call(request)
            self._properties_until = clock.now() + _PROPERTIES_SECONDS
        except (DriverError, OSError, ValueError) as error:
            self._properties_until = clock.now() + _PROPERTIES_RETRY_SECONDS
            reason = f"no answer in {_PROPERTIES_TIMEOUT_SECONDS:g} s" if isinstance(error, TimeoutError) else error
            log.warning("os-brick cannot read the properties of this host, which volumes may require: %s", reason)
        finally:
            self._reading = None

    # Volumes

    async def connect(self, guest_id: str, disk: Disk) -> Disk:
        """Connect the host for the guest. Returns the disk with its path. Idempotent."""
        async with self._locks[disk.volume_id]:
            record = Record(guest_id, disk.volume_id, disk.connection)
            self._check(record)
            known = self.find(guest_id, disk.volume_id)
            if known is not None and known.is_elsewhere(record):
                await self._disconnect(known, ignore_errors=True)
                known = None
            await self._retry_disconnections(disk.volume_id)
            self._write(record if known is None else msgspec.structs.replace(record, device=known.device))
            try:
                device = await self._request("connect", record)
            except DriverError:
                # os-brick has disconnected what it had connected.
                if known is None:
                    self._path(record).unlink()
                raise
            record = msgspec.structs.replace(record, device=device)
            self._write(record)
        data = {**(disk.connection.get("data") or {}), _DEVICE_PATH: str(device["path"])}
        return msgspec.structs.replace(disk, connection={**disk.connection, "data": data})

    async def disconnect(self, guest_id: str, volume_id: str) -> None:
        """Disconnect the host, unless another guest of it uses the volume. Succeeds without a connection."""
        async with self._locks[volume_id]:
            if (record := self.find(guest_id, volume_id)) is not None:
                await self._disconnect(record)

    async def disconnect_all(self, guest_id: str) -> None:
        """Disconnect the volumes of a guest that does not run. What cannot be disconnected is logged."""
        for path in self._records.glob(f"*@{guest_id}"):
            volume_id = path.name.partition("@")[0]
            async with self._locks[volume_id]:
                if (record := self.find(guest_id, volume_id)) is not None:
                    await self._disconnect(record, ignore_errors=True)

    async def retry_disconnections(self) -> None:
        """Disconnect what earlier attempts could not disconnect. What still fails is logged."""
        for volume_id in {path.name.partition("@")[0] for path in self._left_over.glob("*@*")}:
            async with self._locks[volume_id]:
                await self._retry_disconnections(volume_id)

    async def extend(self, guest_id: str, disk: Disk) -> None:
        """Make the host see the new size of the volume. Files have it already."""
        async with self._locks[disk.volume_id]:
            record = self.find(guest_id, disk.volume_id)
            if record is not None and record.kind not in _MOUNTED:
                await self._request("extend", record)

    def find(self, guest_id: str, volume_id: str) -> Record | None:
        try:
            return msgspec.json.decode((self._records / f"{volume_id}@{guest_id}").read_bytes(), type=Record)
        except FileNotFoundError:
            return None

    async def _disconnect(self, record: Record, *, ignore_errors: bool = False) -> None:
        if not self._is_used_elsewhere(record):
            try:
                await self._request("disconnect", record, ignore_errors=ignore_errors)
            except DriverError as error:
                if not ignore_errors:
                    raise
                log.warning("volume %s stays connected to this host: %s", record.volume_id, error.message)
                self._write(record, self._left_over / f"{record.volume_id}@{record.guest_id}@{new_id()}")
        self._path(record).unlink(missing_ok=True)

    async def _retry_disconnections(self, volume_id: str) -> None:
        for path in list(self._left_over.glob(f"{volume_id}@*")):
            record = msgspec.json.decode(path.read_bytes(), type=Record)
            if not self._is_in_use(record):
                try:
                    await self._request("disconnect", record, ignore_errors=True)
                except (DriverError, OSError, ValueError) as error:
                    log.warning("volume %s still stays connected to this host: %s", volume_id, error)
                    continue
            path.unlink()

    def _is_in_use(self, left_over: Record) -> bool:
        """Whether a guest uses a volume at this location: this volume again, or one that the storage has put there."""
        others = [msgspec.json.decode(path.read_bytes(), type=Record) for path in self._records.glob("*@*")]
        return any(
            not other.is_elsewhere(left_over)
            and (other.volume_id == left_over.volume_id or other.location.keys() & left_over.location.keys())
            for other in others
        )

    def _is_used_elsewhere(self, record: Record) -> bool:
        """Whether another guest of this host uses the same connection."""
        for path in self._records.glob(f"{record.volume_id}@*"):
            other = msgspec.json.decode(path.read_bytes(), type=Record)
            if other.guest_id != record.guest_id and not other.is_elsewhere(record):
                return True
        return False

    def _path(self, record: Record) -> Path:
        return self._records / f"{record.volume_id}@{record.guest_id}"

    def _write(self, record: Record, path: Path | None = None) -> None:
        from kilonova.hosts.drivers.libvirt.hypervisor import write_file

        path = path or self._path(record)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(path, msgspec.json.encode(record))

    # os-brick

    def _check(self, record: Record) -> None:
        """Raises DriverError if this host lacks something that the connection needs."""
        volume = f"volume {record.volume_id} has connection type {record.kind!r}, which requires"
        if not is_installed():
            raise DriverError(
                f"{volume} os-brick: it is not installed on {self._host}; without it the types nbd, rbd and local work"
            )
        if os.geteuid() != 0:
            raise DriverError(f"{volume} root privileges: the agent of {self._host} does not run as root")
        # File systems may be mounted already.
        if record.kind not in _MOUNTED and (missing := _missing_program(record.kind)):
            raise DriverError(f"{volume} {missing} on {self._host}")

    async def _request(self, verb: Any, record: Record, *, ignore_errors: bool = False) -> Any:
        request = Request(
            verb=verb, kind=record.kind, data=record.data, device=record.device, ignore_errors=ignore_errors
        )
        if record.kind in _MOUNTED:
            self._mounts.mkdir(mode=0o711, parents=True, exist_ok=True)
            request["mount_path"] = str(self._mounts)
        try:
            return await self._call(request)
        except DriverError as error:
            missing = _missing_program(record.kind)
            hint = f" ({missing} is missing)" if missing else ""
            what = f"cannot {verb} volume {record.volume_id} ({record.kind})"
            raise DriverError(f"os-brick on {self._host} {what}: {error.message}{hint}") from None

    async def _call(self, request: Request) -> Any:
        """Call os-brick in a process of its own. Raises DriverError with its message."""
        self._records.mkdir(mode=0o700, parents=True, exist_ok=True)
        request["lock_path"] = str(self._records / "locks")
        request["multipath"] = self._config.libvirt.volume_use_multipath
        output = await programs.run(
            sys.executable,
            "-W",
            "ignore",
            "-m",
            os_brick_process.__name__,
            content=json.dumps(request).encode(),
            environment={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        document = json.loads(output)
        if "error" in document:
            raise DriverError(document["error"])
        return document["result"]


def is_installed() -> bool:
    return importlib.util.find_spec("os_brick") is not None


def _missing_program(kind: str) -> str:
    """The program that connects volumes of this type, with its package, if the host lacks it; otherwise empty."""
    program, package = _PROGRAMS.get(kind, ("", ""))
    return f"{program} (Debian's package {package})" if program and programs.find(program) is None else ""
