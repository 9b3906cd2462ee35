"""Bodies and query keys of the snapshot routes."""

from __future__ import annotations

from kilonova.http.api import multi
from kilonova.http.pagination import LIMIT, MARKER
from kilonova.http.parameter_types import BOOLEAN, STRING, Schema, closed_object, is_true, request_body
from kilonova.volume.schemas import DESCRIPTION, METADATA, METADATA_OR_NULL, NAME, UUID_OR_NULL

_NAMES: Schema = {
    "name": NAME,
    "description": DESCRIPTION,
    # Names of the first version of the API, which clients still send.
    "display_name": NAME,
    "display_description": DESCRIPTION,
}
# From 3.66 on `force` may only be true.
FORCED: Schema = {**BOOLEAN, "enum": [value for value in BOOLEAN["enum"] if is_true(value)]}
CREATE = request_body(
    "snapshot", {**_NAMES, "volume_id": UUID_OR_NULL, "metadata": METADATA_OR_NULL, "force": FORCED}, ["volume_id"]
)
UPDATE = request_body("snapshot", _NAMES, minProperties=1)
METADATA_BODY = closed_object({"metadata": METADATA}, ["metadata"])
ITEM_BODY = closed_object({"meta": {**METADATA, "minProperties": 1, "maxProperties": 1}}, ["meta"])

# The statuses that an administrator can set.
STATUSES = ("available", "creating", "deleting", "error", "error_deleting")
RESET = closed_object({"status": {"type": "string", "enum": list(STATUSES)}}, ["status"])
PROGRESS: Schema = {"type": "string", "pattern": "^(100|[0-9]{1,2})%$"}
REPORT = closed_object({"status": {"type": "string", "enum": list(STATUSES)}, "progress": PROGRESS}, ["status"])

# Unknown keys are ignored.
LIST: dict[str, Schema] = {
    "limit": LIMIT,
    "marker": MARKER,
    "offset": LIMIT,
    "with_count": BOOLEAN,
    "*": multi(STRING),
}
