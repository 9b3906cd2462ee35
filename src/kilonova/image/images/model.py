"""Rows of images, with their properties and tags."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from msgspec import structs

from kilonova.image.files import HASH_ALGORITHM, UploadResult
from kilonova.store import Reader, Transaction
from kilonova.store.records import Record


class Image(Record, frozen=True):
    """`data_id` is the id of the upload."""

    table: ClassVar[str] = "images"

    id: str
    created_at: float
    updated_at: float
    name: str | None = None
    owner: str | None = None
    status: str = "queued"
    visibility: str = "shared"
    disk_format: str | None = None
    container_format: str | None = None
    min_disk: int = 0
    min_ram: int = 0
    protected: bool = False
    hidden: bool = False
    size: int | None = None
    virtual_size: int | None = None
    checksum: str | None = None
    hash_algo: str | None = None
    hash_value: str | None = None
    data_id: str | None = None


class ImageDetails(NamedTuple):
    image: Image
    properties: dict[str, str]
    tags: list[str]


_COLUMNS = Image.__struct_fields__
_INSERT = (
    f"INSERT INTO images ({', '.join(_COLUMNS)}) "
    f"VALUES ({', '.join(f'${number}' for number in range(1, len(_COLUMNS) + 1))}) ON CONFLICT (id) DO NOTHING"
)
_ADD_PROPERTY = (
    "INSERT INTO image_properties (image_id, name, value) VALUES ($1, $2, $3) "
    "ON CONFLICT (image_id, name) DO UPDATE SET value = excluded.value"
)
_ADD_TAG = "INSERT INTO image_tags (image_id, tag) VALUES ($1, $2) ON CONFLICT DO NOTHING"


class IdTaken(Exception):
    """Another image has the id, or had it until its deletion."""


async def create(tx: Transaction, new: ImageDetails) -> None:
    """Insert the image. Raises IdTaken."""
    image_id = new.image.id
    if not await tx.execute(_INSERT, *new.image.encode().values()):
        raise IdTaken(f"Image ID {image_id} already exists!")
    # After the insert, which waits for a concurrent deletion of an image with this id.
    if await tx.fetch_value("SELECT 1 FROM deleted_images WHERE id = $1", image_id):
        raise IdTaken(f"Image ID {image_id} was used by a deleted image. Ids of images are not used again.")
    for name, value in new.properties.items():
        await tx.execute(_ADD_PROPERTY, image_id, name, value)
    for tag in new.tags:
        await tx.execute(_ADD_TAG, image_id, tag)


async def get(reader: Reader, image_id: str) -> Image | None:
    return Image.decode_optional(await reader.fetch_one("SELECT * FROM images WHERE id = $1", image_id))


async def lock(tx: Transaction, image_id: str) -> ImageDetails | None:
    """The image, locked until the transaction ends."""
    row = await tx.fetch_one("SELECT * FROM images WHERE id = $1 FOR UPDATE", image_id)
    return None if row is None else (await load_details(tx, [Image.decode(row)]))[0]


async def load_details(reader: Reader, found: list[Image]) -> list[ImageDetails]:
    """Load the properties and tags of images."""
    if not found:
        return []
    ids = [image.id for image in found]
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
    return [ImageDetails(image, properties[image.id], tags[image.id]) for image in found]


async def change(tx: Transaction, before: ImageDetails, after: ImageDetails, now: float) -> ImageDetails:
    """Write the differences between two states of an image."""
    image_id, old = before.image.id, before.image.encode()
    changed = structs.replace(after.image, updated_at=now)
    changes = {name: value for name, value in changed.encode().items() if value != old[name] or name == "updated_at"}
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
    return after._replace(image=changed)


async def remove(tx: Transaction, image_id: str, now: float) -> None:
    """Delete the image. Its id stays in use, in lower case: an older release stored the id as it was requested."""
    await tx.execute("DELETE FROM images WHERE id = $1", image_id)
    await tx.execute(
        "INSERT INTO deleted_images (id, deleted_at) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING",
        image_id.lower(),
        now,
    )


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
