"""Tables of the built-in image service; image data are files."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Table, Text

from kilonova.store.schema.base import flag, ident, metadata, moment, number, string


def _of_image() -> Column[str]:
    return Column("image_id", Text, ForeignKey("images.id", ondelete="CASCADE"), primary_key=True)


images = Table(
    "images",
    metadata,
    ident(),
    string("name", nullable=True),
    string("owner", nullable=True),
    string("status"),
    string("visibility"),
    string("disk_format", nullable=True),
    string("container_format", nullable=True),
    number("min_disk"),
    number("min_ram"),
    flag("protected"),
    flag("hidden"),
    number("size", nullable=True),
    number("virtual_size", nullable=True),
    string("checksum", nullable=True),
    string("hash_algo", nullable=True),
    string("hash_value", nullable=True),
    # Id of the upload. The name of the image's file consists of the image's id and this one.
    string("data_id", nullable=True),
    moment("created_at"),
    moment("updated_at"),
    Index("ix_images_created", "created_at", "id"),
    Index("ix_images_owner", "owner", "created_at", "id"),
    Index("ix_images_visibility", "visibility", "created_at", "id"),
    Index("ix_images_name", "name"),
    Index("ix_images_status", "status"),
)

# Ids of deleted images, which no later image may have: servers and hosts refer to images by id.
deleted_images = Table("deleted_images", metadata, ident(), moment("deleted_at"))

image_properties = Table(
    "image_properties",
    metadata,
    _of_image(),
    Column("name", Text, primary_key=True),
    string("value"),
    Index("ix_image_properties_name", "name", "image_id"),
)

image_tags = Table(
    "image_tags",
    metadata,
    _of_image(),
    Column("tag", Text, primary_key=True),
    Index("ix_image_tags_tag", "tag", "image_id"),
)

image_members = Table(
    "image_members",
    metadata,
    _of_image(),
    Column("member_id", Text, primary_key=True),
    string("status"),
    moment("created_at"),
    moment("updated_at"),
    Index("ix_image_members_member", "member_id", "image_id"),
)
