"""Rows of images, with their properties and tags."""

from __future__ import annotations

from typing import Any, NamedTuple

from kilonova.ids import new_id
from kilonova.image.files import HASH_ALGORITHM, UploadResult
from kilonova.store import Reader, Row, Transaction

COLUMNS = (
    "id",
    "name",
    "owner",
    "status",
    "visibility",
    "disk_format",
    "container_format",
    "min_disk",
    "min_ram",
    "protected",
    "hidden",
    "created_at",
    "updated_at",
)
_INSERT = (
    f"INSERT INTO images ({', '.join(COLUMNS)}) "
    f"VALUES ({', '.join(f'${number}' for number in range(1, len(COLUMNS) + 1))}) ON CONFLICT (id) DO NOTHING"
)
_ADD_PROPERTY = (
    "INSERT INTO image_properties (image_id, name, value) VALUES ($1, $2, $3) "
    "ON CONFLICT (image_id, name) DO UPDATE SET value = excluded.value"
)
_ADD_TAG = "INSERT INTO image_tags (image_id, tag) VALUES ($1, $2) ON CONFLICT DO NOTHING"


class Image(NamedTuple):
    row: Row
    properties: dict[str, str]
    tags: list[str]


def new_row(owner: str | None, body: dict[str, Any], now: float) -> Row:
    return {
        "id": body.get("id") or new_id(),
        "name": body.get("name"),
        "owner": owner,
        "status": "queued",
        "visibility": body.get("visibility", "shared"),
        "disk_format": body.get("disk_format"),
        "container_format": body.get("container_format"),
        "min_disk": body.get("min_disk", 0),
        "min_ram": body.get("min_ram", 0),
        "protected": body.get("protected", False),
        "hidden": body.get("os_hidden", False),
        "created_at": now,
        "updated_at": now,
    }


_NO_DATA: Row = dict.fromkeys(("size", "virtual_size", "checksum", "hash_algo", "hash_value", "data_id"))


async def create(tx: Transaction, row: Row, properties: dict[str, str], tags: list[str]) -> Image | None:
    """The new image, or None if its id is in use."""
    if not await tx.execute(_INSERT, *(row[column] for column in COLUMNS)):
        return None
    for name, value in properties.items():
        await tx.execute(_ADD_PROPERTY, row["id"], name, value)
    for tag in tags:
        await tx.execute(_ADD_TAG, row["id"], tag)
    return Image({**_NO_DATA, **row}, properties, tags)


async def get(reader: Reader, image_id: str) -> Row | None:
    return await reader.fetch_one("SELECT * FROM images WHERE id = $1", image_id)


async def load_details(reader: Reader, found: list[Row]) -> list[Image]:
    """Load the properties and tags of image rows."""
    if not found:
        return []
    ids = [row["id"] for row in found]
    properties: dict[str, dict[str, str]] = {image_id: {} for image_id in ids}
    for row in await reader.fetch(
        "SELECT image_id, name, value FROM image_properties WHERE image_id = ANY($1) ORDER BY image_id, name", ids
    ):
        properties[row["image_id"]][row["name"]] = row["value"]
    tags: dict[str, list[str]] = {image_id: [] for image_id in ids}
    for row in await reader.fetch(
        "SELECT image_id, tag FROM image_tags WHERE image_id = ANY($1) ORDER BY image_id, tag", ids
    ):
        tags[row["image_id"]].append(row["tag"])
    return [Image(row, properties[row["id"]], tags[row["id"]]) for row in found]


async def change(tx: Transaction, before: Image, after: Image, now: float) -> Image:
    """Write the differences between two states of an image."""
    image_id = before.row["id"]
    changes = {name: value for name, value in after.row.items() if value != before.row[name]}
    changes["updated_at"] = now
    columns = ", ".join(f"{column} = ${number}" for number, column in enumerate(changes, start=2))
    await tx.execute(f"UPDATE images SET {columns} WHERE id = $1", image_id, *changes.values())
    for name, value in after.properties.items():
        if before.properties.get(name) != value:
            await tx.execute(_ADD_PROPERTY, image_id, name, value)
    for name in before.properties.keys() - after.properties.keys():
        await tx.execute("DELETE FROM image_properties WHERE image_id = $1 AND name = $2", image_id, name)
    for tag in set(after.tags) - set(before.tags):
        await tx.execute(_ADD_TAG, image_id, tag)
    for tag in set(before.tags) - set(after.tags):
        await tx.execute("DELETE FROM image_tags WHERE image_id = $1 AND tag = $2", image_id, tag)
    return after._replace(row={**after.row, **changes})


async def remove(tx: Transaction, image_id: str) -> bool:
    return bool(await tx.execute("DELETE FROM images WHERE id = $1", image_id))


async def is_member(reader: Reader, image_id: str, project_id: str | None) -> bool:
    return bool(
        await reader.fetch_value(
            "SELECT 1 FROM image_members WHERE image_id = $1 AND member_id = $2", image_id, project_id
        )
    )


async def set_status(tx: Transaction, image_id: str, before: str, after: str, now: float) -> bool:
    return bool(
        await tx.execute(
            "UPDATE images SET status = $1, updated_at = $2 WHERE id = $3 AND status = $4", after, now, image_id, before
        )
    )


# States of an upload: queued -> saving -> active, or back to queued. Only the upload that `data_id` names may continue.


async def begin_upload(tx: Transaction, image_id: str, data_id: str, now: float) -> bool:
    begun = await tx.execute(
        "UPDATE images SET status = 'saving', data_id = $1, updated_at = $2 WHERE id = $3 AND status = 'queued'",
        data_id,
        now,
        image_id,
    )
    return bool(begun)


async def finish_upload(tx: Transaction, image_id: str, data_id: str, stored: UploadResult, now: float) -> bool:
    done = await tx.execute(
        "UPDATE images SET status = 'active', size = $1, virtual_size = $2, checksum = $3, hash_algo = $4, "
        "hash_value = $5, updated_at = $6 WHERE id = $7 AND data_id = $8 AND status = 'saving'",
        stored.size,
        stored.virtual_size,
        stored.checksum,
        HASH_ALGORITHM,
        stored.hash_value,
        now,
        image_id,
        data_id,
    )
    return bool(done)


async def reset_upload(tx: Transaction, image_id: str, data_id: str, now: float) -> bool:
    """Queue the image again, unless the upload is finished. Returns whether it was reset."""
    was_reset = await tx.execute(
        "UPDATE images SET status = 'queued', data_id = NULL, updated_at = $1 "
        "WHERE id = $2 AND data_id = $3 AND status = 'saving'",
        now,
        image_id,
        data_id,
    )
    return bool(was_reset)


async def is_uploaded(reader: Reader, image_id: str, data_id: str) -> bool:
    return bool(
        await reader.fetch_value(
            "SELECT 1 FROM images WHERE id = $1 AND data_id = $2 AND status <> 'saving'", image_id, data_id
        )
    )
