"""Bodies and query keys of shares."""

from __future__ import annotations

from kilonova.http.api import multi
from kilonova.http.pagination import LIMIT
from kilonova.http.parameter_types import BOOLEAN, STRING, UUID, Schema, closed_object, request_body
from kilonova.share.schemas import DESCRIPTION, METADATA, METADATA_OR_NULL, NAME, SIZE

_NOT_SUPPORTED: Schema = {"type": ["string", "null"], "maxLength": 255}

CREATE = request_body(
    "share",
    {
        "share_proto": {"type": "string", "minLength": 1, "maxLength": 255},
        "size": SIZE,
        "name": NAME,
        "display_name": NAME,
        "description": DESCRIPTION,
        "display_description": DESCRIPTION,
        "share_type": {"type": ["string", "null"], "maxLength": 255},
        "volume_type": {"type": ["string", "null"], "maxLength": 255},
        "metadata": METADATA_OR_NULL,
        "availability_zone": {"type": ["string", "null"], "maxLength": 255},
        "is_public": BOOLEAN,
        # The service has none of these: a request that names one is refused.
        "snapshot_id": _NOT_SUPPORTED,
        "share_network_id": _NOT_SUPPORTED,
        "share_group_id": _NOT_SUPPORTED,
        "scheduler_hints": {"type": ["object", "null"]},
    },
    ["share_proto", "size"],
)
UPDATE = request_body(
    "share",
    {
        "name": NAME,
        "display_name": NAME,
        "description": DESCRIPTION,
        "display_description": DESCRIPTION,
        "is_public": BOOLEAN,
    },
)
METADATA_BODY = closed_object({"metadata": METADATA}, ["metadata"])
ITEM_BODY = closed_object({"meta": {**METADATA, "minProperties": 1, "maxProperties": 1}}, ["meta"])
RESET_TASK_STATE: Schema = closed_object({"task_state": {"type": "null"}}, ["task_state"])
EXTEND = closed_object({"new_size": SIZE, "force": BOOLEAN}, ["new_size"])
SHRINK = closed_object({"new_size": SIZE}, ["new_size"])
RESET: Schema = closed_object(
    {"status": {"type": "string", "enum": ["available", "error", "error_deleting"]}}, ["status"]
)
LIST: dict[str, Schema] = {
    "limit": LIMIT,
    "offset": LIMIT,
    "sort_key": STRING,
    "sort_dir": {"type": "string", "enum": ["asc", "desc"]},
    "all_tenants": STRING,
    "with_count": BOOLEAN,
    "project_id": STRING,
    "user_id": STRING,
    "name": STRING,
    "name~": STRING,
    "status": STRING,
    "is_soft_deleted": BOOLEAN,
    "share_proto": STRING,
    "share_type_id": STRING,
    "export_location_path": STRING,
    "export_location_id": UUID,
    # Unknown keys are ignored, and so are filters by what no share of this service has.
    "*": multi(STRING),
}
