"""Block devices in the database: reading and writing them, and what a host is told of them."""

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
    """All of them, in the order in which they came."""
    return await reader.fetch("SELECT * FROM block_devices WHERE server_id = $1 ORDER BY id", server_id)


async def of_servers(reader: Reader, server_ids: Sequence[str]) -> dict[str, list[Row]]:
    """The volumes of each server that has any."""
    rows = await reader.fetch(
        "SELECT * FROM block_devices WHERE server_id = ANY($1) AND volume_id IS NOT NULL ORDER BY id", list(server_ids)
    )
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["server_id"], []).append(row)
    return found


async def volumes_of(reader: Reader, server_id: str) -> list[Row]:
    """Those that are volumes already: some are made of an image or a snapshot while the server is built."""
    rows = await of_server(reader, server_id)
    return [row for row in rows if row["volume_id"] is not None]


async def get(reader: Reader, uuid: str) -> Row | None:
    return await reader.fetch_one("SELECT * FROM block_devices WHERE uuid = $1", uuid)


async def of_volume(reader: Reader, server_id: str, volume_id: str) -> Row | None:
    return await reader.fetch_one(
        "SELECT * FROM block_devices WHERE server_id = $1 AND volume_id = $2", server_id, volume_id
    )


async def root_of(reader: Reader, server_id: str) -> Row | None:
    """The volume that the server boots from, if it boots from one."""
    return await reader.fetch_one(
        "SELECT * FROM block_devices WHERE server_id = $1 AND boot_index = 0 AND destination_type = 'volume'", server_id
    )


async def set_volume(tx: Transaction, uuid: str, volume_id: str | None, size: int | None = None) -> None:
    """The volume that the device is, or none; without a size that stays."""
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
    """The attachment by which the server has the volume, and how its host reaches it; nothing while it is reserved.

    What stood by is forgotten.
    """
    text = None if connection is None else orjson.dumps(connection).decode()
    await tx.execute(
        "UPDATE block_devices SET attachment_id = $2, connection = $3, standby = NULL WHERE uuid = $1",
        uuid,
        attachment_id,
        text,
    )


async def set_standby(tx: Transaction, uuid: str, ready: dict[str, Any] | None) -> None:
    """The attachment to another host, as `id` and `connection`, while the server is about to move there."""
    text = None if ready is None else orjson.dumps(ready).decode()
    await tx.execute("UPDATE block_devices SET standby = $2 WHERE uuid = $1", uuid, text)


async def set_size(tx: Transaction, server_id: str, volume_id: str, size: int) -> None:
    """The volume has grown to so many GiB."""
    await tx.execute(
        "UPDATE block_devices SET volume_size = $3 WHERE server_id = $1 AND volume_id = $2", server_id, volume_id, size
    )


async def set_termination(tx: Transaction, uuid: str, delete: bool) -> None:
    """Whether the volume is deleted with the server."""
    await tx.execute("UPDATE block_devices SET delete_on_termination = $2 WHERE uuid = $1", uuid, delete)


async def exchange(tx: Transaction, uuid: str, volume: dict[str, Any], ready: dict[str, Any]) -> None:
    """The device is another volume from now on, by the attachment that is `ready`, as `id` and `connection`."""
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
    """Whether it is a volume, or will be one."""
    return bool(device["destination_type"] == VOLUME)


def is_volume_backed(server: Row) -> bool:
    """Whether the server boots from a volume: then it has no image."""
    return server["image_id"] is None


def disk_of(device: Row, connection: dict[str, Any] | None = None) -> Disk:
    """What a host is told of a volume; `connection` where it is not the one that the server's own host has."""
    stored = orjson.loads(device["connection"]) if device["connection"] else {}
    way = stored if connection is None else connection
    return Disk(
        volume_id=device["volume_id"],
        connection=way,
        device=device["device_name"] or "",
        boot_index=device["boot_index"],
        bus=device["disk_bus"] or "",
        type=device["device_type"] or "disk",
        tag=device["tag"] or "",
        read_only=way.get("data", {}).get("access_mode") == "ro",
        shared=device["multiattach"],
    )


def local_disks_of(devices: Iterable[Row]) -> list[LocalDisk] | None:
    """The empty local disks that the server asked for; None if it asked for none, and its flavor says."""
    asked = [
        LocalDisk(
            size_mb=device["volume_size"] or 0,
            device=device["device_name"] or "",
            format=device["guest_format"] or "",
            tag=device["tag"] or "",
        )
        for device in devices
        if device["destination_type"] == LOCAL and device["source_type"] == "blank"
    ]
    return asked or None
