"""Block devices in the database, and their form in messages to hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from kilonova.hosts.messages import Disk, LocalDisk
from kilonova.store import Reader, Row, Transaction

LOCAL, VOLUME = "local", "volume"
COLUMNS = (
    *("uuid", "server_id", "source_type", "destination_type", "source_id", "volume_id", "volume_size", "volume_type"),
    *("attachment_id", "connection", "device_name", "boot_index", "device_type", "disk_bus", "guest_format", "tag"),
    *("delete_on_termination", "multiattach", "created_at"),
)
_INSERT = "INSERT INTO block_devices ({}) VALUES ({})".format(
    ", ".join(COLUMNS), ", ".join(f"${place}" for place in range(1, len(COLUMNS) + 1))
)


async def insert(tx: Transaction, devices: Iterable[Row]) -> None:
    await tx.execute_many(_INSERT, [[device.get(name) for name in COLUMNS] for device in devices])


async def of_server(reader: Reader, server_id: str) -> list[Row]:
    """All block devices of the server, oldest first."""
    return await reader.fetch("SELECT * FROM block_devices WHERE server_id = $1 ORDER BY id", server_id)


async def of_servers(reader: Reader, server_ids: Sequence[str]) -> dict[str, list[Row]]:
    """The volumes of each server, without servers that have none."""
    rows = await reader.fetch(
        "SELECT * FROM block_devices WHERE server_id = ANY($1) AND volume_id IS NOT NULL ORDER BY id", list(server_ids)
    )
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["server_id"], []).append(row)
    return found


async def volumes_of(reader: Reader, server_id: str) -> list[Row]:
    """Devices that have a volume. Others get one from an image or snapshot while the server is built."""
    rows = await of_server(reader, server_id)
    return [row for row in rows if row["volume_id"] is not None]


async def get(reader: Reader, uuid: str) -> Row | None:
    return await reader.fetch_one("SELECT * FROM block_devices WHERE uuid = $1", uuid)


async def of_volume(reader: Reader, server_id: str, volume_id: str) -> Row | None:
    return await reader.fetch_one(
        "SELECT * FROM block_devices WHERE server_id = $1 AND volume_id = $2", server_id, volume_id
    )


async def root_of(reader: Reader, server_id: str) -> Row | None:
    """The root volume of a volume-backed server."""
    return await reader.fetch_one(
        "SELECT * FROM block_devices WHERE server_id = $1 AND boot_index = 0 AND destination_type = 'volume'", server_id
    )


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
    tx: Transaction, uuid: str, attachment_id: str | None, connection: dict[str, Any] | None = None
) -> None:
    """Set the attachment and its connection, which is None while the volume is only reserved. Clears the standby."""
    text = None if connection is None else orjson.dumps(connection).decode()
    await tx.execute(
        "UPDATE block_devices SET attachment_id = $2, connection = $3, standby = NULL WHERE uuid = $1",
        uuid,
        attachment_id,
        text,
    )


async def set_standby(tx: Transaction, uuid: str, ready: dict[str, Any] | None) -> None:
    """Set the attachment to the destination host, as `id` and `connection`, during a live migration."""
    text = None if ready is None else orjson.dumps(ready).decode()
    await tx.execute("UPDATE block_devices SET standby = $2 WHERE uuid = $1", uuid, text)


async def set_size(tx: Transaction, server_id: str, volume_id: str, size: int) -> None:
    """Set the volume's size in GiB after it was extended."""
    await tx.execute(
        "UPDATE block_devices SET volume_size = $3 WHERE server_id = $1 AND volume_id = $2", server_id, volume_id, size
    )


async def set_delete_on_termination(tx: Transaction, uuid: str, delete: bool) -> None:
    """Whether the volume is deleted with the server."""
    await tx.execute("UPDATE block_devices SET delete_on_termination = $2 WHERE uuid = $1", uuid, delete)


async def replace_volume(tx: Transaction, uuid: str, volume: dict[str, Any], ready: dict[str, Any]) -> None:
    """Give the device another volume, with the attachment `ready`, as `id` and `connection`."""
    await set_volume(tx, uuid, volume["id"], volume["size"])
    await set_attachment(tx, uuid, ready["id"], ready["connection"])
    await tx.execute(
        "UPDATE block_devices SET source_type = 'volume', source_id = $2, multiattach = $3 WHERE uuid = $1",
        uuid,
        volume["id"],
        volume["multiattach"],
    )


async def remove(tx: Transaction, uuid: str) -> None:
    await tx.execute("DELETE FROM block_devices WHERE uuid = $1", uuid)


async def remove_all(tx: Transaction, server_id: str) -> None:
    await tx.execute("DELETE FROM block_devices WHERE server_id = $1", server_id)


async def has_volumes(reader: Reader, server_id: str) -> bool:
    sql = "SELECT 1 FROM block_devices WHERE server_id = $1 AND destination_type = 'volume' LIMIT 1"
    return await reader.fetch_value(sql, server_id) is not None


def is_volume(device: Row) -> bool:
    """Whether the device has a volume, or gets one while the server is built."""
    return bool(device["destination_type"] == VOLUME)


def is_volume_backed(server: Row) -> bool:
    """Whether the server boots from a volume; then it has no image id."""
    return server["image_id"] is None


def disk_of(device: Row, connection: dict[str, Any] | None = None) -> Disk:
    """A volume as hosts receive it. `connection` replaces the stored one, for a host other than the server's."""
    stored = orjson.loads(device["connection"]) if device["connection"] else {}
    used = stored if connection is None else connection
    return Disk(
        volume_id=device["volume_id"],
        connection=used,
        device=device["device_name"] or "",
        boot_index=device["boot_index"],
        bus=device["disk_bus"] or "",
        type=device["device_type"] or "disk",
        tag=device["tag"] or "",
        read_only=used.get("data", {}).get("access_mode") == "ro",
        shared=device["multiattach"],
    )


def local_disks_of(devices: Iterable[Row]) -> list[LocalDisk] | None:
    """The blank local disks of the request; None if it has none and the flavor's disks are used."""
    disks = [
        LocalDisk(
            size_mb=device["volume_size"] or 0,
            device=device["device_name"] or "",
            format=device["guest_format"] or "",
            tag=device["tag"] or "",
        )
        for device in devices
        if device["destination_type"] == LOCAL and device["source_type"] == "blank"
    ]
    return disks or None
