"""JSON schemas of images and members: for requests, and for clients (/v2/schemas)."""

from __future__ import annotations

from kilonova.http.schema import Schema
from kilonova.image.formats import CONTAINER_FORMATS, DISK_FORMATS

UUID_PATTERN = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
VISIBILITIES = ("community", "public", "private", "shared")
STATUSES = (
    "queued",
    "saving",
    "active",
    "killed",
    "deleted",
    "uploading",
    "importing",
    "pending_delete",
    "deactivated",
)
MAX_PROPERTIES = 128
MAX_TAGS = 128

TAG: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
_SIZE: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}

# Every other name is a custom property, whose value is a string.
WRITABLE_ATTRIBUTES: dict[str, Schema] = {
    "name": {"type": ["string", "null"], "maxLength": 255, "description": "Descriptive name for the image"},
    "visibility": {"type": "string", "enum": list(VISIBILITIES), "description": "Scope of image accessibility"},
    "disk_format": {"type": ["string", "null"], "enum": [None, *DISK_FORMATS], "description": "Format of the disk"},
    "container_format": {
        "type": ["string", "null"],
        "enum": [None, *CONTAINER_FORMATS],
        "description": "Format of the container",
    },
    "min_disk": {**_SIZE, "description": "Amount of disk space (in GB) required to boot image."},
    "min_ram": {**_SIZE, "description": "Amount of ram (in MB) required to boot image."},
    "protected": {"type": "boolean", "description": "If true, image will not be deletable."},
    "os_hidden": {"type": "boolean", "description": "If true, image will not appear in default image list response."},
    "owner": {"type": ["string", "null"], "maxLength": 255, "description": "Owner of the image"},
    "tags": {
        "type": "array",
        "items": TAG,
        "maxItems": MAX_TAGS,
        "description": "List of strings related to the image",
    },
}
_ID: Schema = {"type": "string", "pattern": UUID_PATTERN, "description": "An identifier for the image"}
_TEXT: Schema = {"type": ["string", "null"], "readOnly": True}
_NUMBER: Schema = {"type": ["integer", "null"], "readOnly": True}
READ_ONLY_ATTRIBUTES: dict[str, Schema] = {
    "status": {"type": "string", "enum": list(STATUSES), "readOnly": True, "description": "Status of the image"},
    "size": {**_NUMBER, "description": "Size of image file in bytes"},
    "virtual_size": {**_NUMBER, "description": "Virtual size of image in bytes"},
    "checksum": {**_TEXT, "description": "md5 hash of image contents."},
    "os_hash_algo": {**_TEXT, "description": "Algorithm to calculate the os_hash_value"},
    "os_hash_value": {**_TEXT, "description": "Hexdigest of the image contents using the algorithm of os_hash_algo"},
    "created_at": {**_TEXT, "description": "Date and time of image registration"},
    "updated_at": {**_TEXT, "description": "Date and time of the last image modification"},
    "self": {**_TEXT, "description": "An image self url"},
    "file": {**_TEXT, "description": "An image file url"},
    "schema": {**_TEXT, "description": "An image schema url"},
    "direct_url": {**_TEXT, "description": "URL to access the image file kept in external store"},
    "locations": {"type": "array", "readOnly": True, "description": "A set of URLs to access the image file"},
}
# Names that custom properties may not have.
RESERVED_NAMES = frozenset({"deleted", "deleted_at", "is_public", "owner_id", "os_glance_import_task"})

PROPERTY: Schema = {"type": ["string", "null"], "maxLength": 65535}
CREATE: Schema = {
    "type": "object",
    "properties": {"id": _ID, **WRITABLE_ATTRIBUTES},
    "additionalProperties": True,
}
MEMBER_CREATE: Schema = {
    "type": "object",
    "properties": {"member": {"type": "string", "minLength": 1, "maxLength": 255}},
    "required": ["member"],
    "additionalProperties": False,
}
MEMBER_STATUSES = ("pending", "accepted", "rejected")
MEMBER_UPDATE: Schema = {
    "type": "object",
    # Clients send the whole member with the new status.
    "properties": {"status": {"enum": list(MEMBER_STATUSES)}},
    "required": ["status"],
    "additionalProperties": True,
}


def image_document() -> Schema:
    return {
        "name": "image",
        "properties": {"id": _ID, **WRITABLE_ATTRIBUTES, **READ_ONLY_ATTRIBUTES},
        "additionalProperties": {"type": "string"},
        "links": [
            {"rel": "self", "href": "{self}"},
            {"rel": "enclosure", "href": "{file}"},
            {"rel": "describedby", "href": "{schema}"},
        ],
    }


def member_document() -> Schema:
    return {
        "name": "member",
        "properties": {
            "image_id": _ID,
            "member_id": {"type": "string", "description": "An identifier for the image member (tenantId)"},
            "status": {"type": "string", "enum": list(MEMBER_STATUSES), "description": "The status of this member"},
            "created_at": {"type": "string", "description": "Date and time of image member creation"},
            "updated_at": {"type": "string", "description": "Date and time of last modification of image member"},
            "schema": {"type": "string", "readOnly": True},
        },
    }


def list_document(plural: str, one: Schema) -> Schema:
    links = [
        {"rel": "first", "href": "{first}"},
        {"rel": "next", "href": "{next}"},
        {"rel": "describedby", "href": "{schema}"},
    ]
    paged = plural == "images"
    pages: Schema = {"first": {"type": "string"}, "next": {"type": "string"}} if paged else {}
    return {
        "name": plural,
        "properties": {plural: {"type": "array", "items": one}, **pages, "schema": {"type": "string"}},
        "links": links if paged else links[-1:],
    }
