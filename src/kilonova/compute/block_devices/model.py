"""Block devices in the database, and their form in messages to hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from msgspec import Struct

from kilonova.hosts.messages import Disk, LocalDisk
from kilonova.store import Reader, Transaction
from kilonova.store.records import Record, encode_document

LOCAL, VOLUME = "local", "volume"
Connection = dict[str, object]
"""The volume service's `connection_info`, with the host that it is for."""
# Key that we add to `connection_info`: the host that it is for.
HOST = "attached_host"


class AttachedVolume(Struct, frozen=True):
    """A volume as it is attached: the attachment's id, and the connection of its host."""

    id: str
    connection: Connection


class BlockDevice(Record, frozen=True):
    """`connection` is None while the volume is only reserved. `standby` is for the destination of a live migration."""

    table: ClassVar[str] = "block_devices"

    uuid: str
    server_id: str
    source_type: str
    destination_type: str
    delete_on_termination: bool
    multiattach: bool
    created_at: float
    source_id: str | None = None
    volume_id: str | None = None
    volume_size: int | None = None
    volume_type: str | None = None
    attachment_id: str | None = None
    connection: Connection | None = None
    standby: AttachedVolume | None = None
    device_name: str | None = None
    boot_index: int | None = None
    device_type: str | None = None
    disk_bus: str | None = None
    guest_format: str | None = None
    tag: str | None = None

    @property
    def volume(self) -> str:
        """The id of the volume, for a device that has one."""
        assert self.volume_id is not None, f"device {self.uuid} has no volume"
        return self.volume_id

    @property
    def attachment(self) -> str:
        """The id of the attachment, for a device whose volume is reserved."""
        assert self.attachment_id is not None, f"the volume of device {self.uuid} is not reserved"
        return self.attachment_id

    @property
    def is_volume(self) -> bool:
        """Whether the device has a volume, or gets one while the server is built."""
        return self.destination_type == VOLUME

    @property
    def connected_host(self) -> str:
        """The host that the volume is connected to; empty while it is only reserved."""
        return host_of(self.connection)

    @property
    def standby_host(self) -> str:
        return host_of(self.standby.connection) if self.standby else ""


class ListedVolume(Record, frozen=True):
    """The columns that a list of servers shows."""

    table: ClassVar[str] = "block_devices"

    server_id: str
    volume_id: str | None
    delete_on_termination: bool


COLUMNS = BlockDevice.__struct_fields__
_INSERT = "INSERT INTO block_devices ({}) VALUES ({})".format(
    ", ".join(COLUMNS), ", ".join(f"${place}" for place in range(1, len(COLUMNS) + 1))
)


async def insert(tx: Transaction, devices: Iterable[BlockDevice]) -> None:
    await tx.execute_many(_INSERT, [list(device.encode().values()) for device in devices])


async def of_server(reader: Reader, server_id: str) -> list[BlockDevice]:
    """All block devices of the server, oldest first."""
    rows = await reader.fetch("SELECT * FROM block_devices WHERE server_id = $1 ORDER BY id", server_id)
    return BlockDevice.decode_all(rows)


async def of_servers(reader: Reader, server_ids: Sequence[str]) -> dict[str, list[ListedVolume]]:
    """The volumes of each server, without servers that have none."""
    rows = await reader.fetch(
        "SELECT server_id, volume_id, delete_on_termination FROM block_devices"
        " WHERE server_id = ANY($1) AND volume_id IS NOT NULL ORDER BY id",
        list(server_ids),
    )
    found: dict[str, list[ListedVolume]] = {}
    for volume in ListedVolume.decode_all(rows):
        found.setdefault(volume.server_id, []).append(volume)
    return found


async def volumes_of(reader: Reader, server_id: str) -> list[BlockDevice]:
    """Devices that have a volume. Others get one from an image or snapshot while the server is built."""
    return [device for device in await of_server(reader, server_id) if device.volume_id is not None]


async def get(reader: Reader, uuid: str) -> BlockDevice | None:
    return BlockDevice.decode_optional(await reader.fetch_one("SELECT * FROM block_devices WHERE uuid = $1", uuid))


async def of_volume(reader: Reader, server_id: str, volume_id: str) -> BlockDevice | None:
    sql = "SELECT * FROM block_devices WHERE server_id = $1 AND volume_id = $2"
    return BlockDevice.decode_optional(await reader.fetch_one(sql, server_id, volume_id))


async def root_of(reader: Reader, server_id: str) -> BlockDevice | None:
    """The root volume of a volume-backed server."""
    sql = "SELECT * FROM block_devices WHERE server_id = $1 AND boot_index = 0 AND destination_type = 'volume'"
    return BlockDevice.decode_optional(await reader.fetch_one(sql, server_id))


async def set_volume(tx: Transaction, uuid: str, volume_id: str | None, size: int | None = None) -> None:
    """Set the device's volume; without a size the size stays."""
    await tx.execute(
        "UPDATE block_devices SET volume_id = $2, volume_size = COALESCE(CAST($3 AS BIGINT), volume_size)"
        " WHERE uuid = $1",
        uuid,
        volume_id,
        size,
    )


async def set_attachment(
    tx: Transaction, uuid: str, attachment_id: str | None, connection: Connection | None = None
) -> None:
    """Set the attachment and its connection, which is None while the volume is only reserved. Clears the standby."""
    text = None if connection is None else encode_document(connection)
    await tx.execute(
        "UPDATE block_devices SET attachment_id = $2, connection = $3, standby = NULL WHERE uuid = $1",
        uuid,
        attachment_id,
        text,
    )


async def set_standby(tx: Transaction, uuid: str, standby: AttachedVolume | None) -> None:
    """Set the attachment to the destination host during a live migration."""
    text = None if standby is None else encode_document(standby)
    await tx.execute("UPDATE block_devices SET standby = $2 WHERE uuid = $1", uuid, text)


async def set_size(tx: Transaction, server_id: str, volume_id: str, size: int) -> None:
    """Set the volume's size in GiB after it was extended."""
    await tx.execute(
        "UPDATE block_devices SET volume_size = $3 WHERE server_id = $1 AND volume_id = $2", server_id, volume_id, size
    )


async def set_delete_on_termination(tx: Transaction, uuid: str, delete: bool) -> None:
    """Whether the volume is deleted with the server."""
    await tx.execute("UPDATE block_devices SET delete_on_termination = $2 WHERE uuid = $1", uuid, delete)


async def replace_volume(
    tx: Transaction, uuid: str, volume_id: str, size: int, attached: AttachedVolume, *, multiattach: bool
) -> None:
    """Give the device another volume with its attachment."""
    await set_volume(tx, uuid, volume_id, size)
    await set_attachment(tx, uuid, attached.id, attached.connection)
    await tx.execute(
        "UPDATE block_devices SET source_type = 'volume', source_id = $2, multiattach = $3 WHERE uuid = $1",
        uuid,
        volume_id,
        multiattach,
    )


async def remove(tx: Transaction, uuid: str) -> None:
    await tx.execute("DELETE FROM block_devices WHERE uuid = $1", uuid)


async def remove_all(tx: Transaction, server_id: str) -> None:
    await tx.execute("DELETE FROM block_devices WHERE server_id = $1", server_id)


async def has_volumes(reader: Reader, server_id: str) -> bool:
    sql = "SELECT 1 FROM block_devices WHERE server_id = $1 AND destination_type = 'volume' LIMIT 1"
    return await reader.fetch_value(sql, server_id) is not None


def host_of(connection: Connection | None) -> str:
    return str(connection.get(HOST, "")) if connection else ""


def disk_of(device: BlockDevice, connection: Connection | None = None) -> Disk:
    """A volume as hosts receive it. `connection` replaces the stored one, for a host other than the server's."""
    used = (device.connection or {}) if connection is None else connection
    data = used.get("data")
    return Disk(
        volume_id=device.volume,
        connection=used,
        device=device.device_name or "",
        boot_index=device.boot_index,
        bus=device.disk_bus or "",
        type=device.device_type or "disk",
        tag=device.tag or "",
        read_only=isinstance(data, dict) and data.get("access_mode") == "ro",
        shared=device.multiattach,
    )


def local_disks_of(devices: Iterable[BlockDevice]) -> list[LocalDisk] | None:
    """The blank local disks of the request; None if it has none and the flavor's disks are used."""
    disks = [
        LocalDisk(
            size_mb=device.volume_size or 0,
            device=device.device_name or "",
            format=device.guest_format or "",
            tag=device.tag or "",
        )
        for device in devices
        if device.destination_type == LOCAL and device.source_type == "blank"
    ]
    return disks or None
