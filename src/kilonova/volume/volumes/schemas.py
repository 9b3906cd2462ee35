"""Bodies and query keys of the volume routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilonova.http.api import multi
from kilonova.http.pagination import LIMIT, MARKER
from kilonova.http.parameter_types import BOOLEAN, STRING, Schema, closed_object, request_body
from kilonova.volume.schemas import DESCRIPTION, METADATA, METADATA_OR_NULL, NAME, SIZE_OR_NULL, UUID_OR_NULL

_REFERENCE: Schema = {"type": ["string", "null"], "maxLength": 255}
_NAMES: Schema = {
    "name": NAME,
    "description": DESCRIPTION,
    # Names of the first version of the API, which clients still send.
    "display_name": NAME,
    "display_description": DESCRIPTION,
}
HINTS: Schema = {"type": ["object", "null"]}
CREATE = closed_object(
    {
        "volume": closed_object(
            {
                **_NAMES,
                "size": SIZE_OR_NULL,
                "availability_zone": _REFERENCE,
                "volume_type": _REFERENCE,
                "metadata": METADATA_OR_NULL,
                "snapshot_id": UUID_OR_NULL,
                "source_volid": UUID_OR_NULL,
                "imageRef": _REFERENCE,
                "image_id": UUID_OR_NULL,
                "backup_id": UUID_OR_NULL,
                "group_id": UUID_OR_NULL,
                "consistencygroup_id": UUID_OR_NULL,
                "multiattach": {**BOOLEAN, "type": ["boolean", "string", "null"], "enum": [*BOOLEAN["enum"], None]},
            }
        ),
        "OS-SCH-HNT:scheduler_hints": HINTS,
        "os:scheduler_hints": HINTS,
    },
    ["volume"],
)
UPDATE = request_body("volume", {**_NAMES, "metadata": METADATA_OR_NULL}, minProperties=1)
METADATA_BODY = closed_object({"metadata": METADATA}, ["metadata"])
META_BODY = closed_object({"meta": {**METADATA, "minProperties": 1, "maxProperties": 1}}, ["meta"])

FILTERS = dict.fromkeys(
    (
        *("id", "name", "display_name", "description", "display_description", "status", "size", "availability_zone"),
        *("bootable", "multiattach", "encrypted", "volume_type_id", "volume_type", "user_id", "project_id"),
        *("tenant_id", "host", "snapshot_id", "source_volid", "migration_status", "replication_status"),
        *("consistencygroup_id", "metadata", "glance_metadata", "group_id", "consumes_quota"),
        *("created_at", "updated_at"),
    ),
    STRING,
)
LIKE = r"^(name|description|display_name|display_description|status|availability_zone|id)~$"
PAGE = {
    "limit": LIMIT,
    "marker": MARKER,
    "offset": LIMIT,
    "sort": STRING,
    "sort_key": STRING,
    "sort_dir": STRING,
}
LIST = {**PAGE, **FILTERS, "all_tenants": STRING, "with_count": BOOLEAN, LIKE: STRING, "*": multi(STRING)}


def opened(schema: Schema, *path: str) -> Schema:
    """The schema with unknown keys allowed, at the top and in the objects along the path."""
    properties = {
        key: opened(member, *path[1:]) if key in path[:1] else member for key, member in schema["properties"].items()
    }
    return {**schema, "properties": properties, "additionalProperties": True}


def ignored(key: str) -> Callable[[Any], Any]:
    """Upgrade of a body from versions in which the key of a new volume was ignored."""

    def upgrade(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "volume": {name: value for name, value in body["volume"].items() if name != key}}

    return upgrade
