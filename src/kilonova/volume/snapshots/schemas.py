"""What the routes of snapshots take."""

from __future__ import annotations

from kilonova.http.api import multi
from kilonova.http.pagination import LIMIT, MARKER
from kilonova.http.pieces import BOOLEAN, STRING, Schema, closed, is_true
from kilonova.volume.schemas import DESCRIPTION, METADATA, METADATA_OR_NULL, NAME, UUID_OR_NULL

_NAMES: Schema = {
    "name": NAME,
    "description": DESCRIPTION,
    # The names of the first version of this API, of which clients were never weaned.
    "display_name": NAME,
    "display_description": DESCRIPTION,
}
# Nothing needs force any more; who insists on it may, and who refuses it asks for what there is not.
FORCED: Schema = {**BOOLEAN, "enum": [value for value in BOOLEAN["enum"] if is_true(value)]}
CREATE = closed(
    {
        "snapshot": closed(
            {**_NAMES, "volume_id": UUID_OR_NULL, "metadata": METADATA_OR_NULL, "force": FORCED}, ["volume_id"]
        )
    },
    ["snapshot"],
)
UPDATE = closed({"snapshot": closed(_NAMES, minProperties=1)}, ["snapshot"])
METADATA_BODY = closed({"metadata": METADATA}, ["metadata"])
ITEM_BODY = closed({"meta": {**METADATA, "minProperties": 1, "maxProperties": 1}}, ["meta"])

# What an administrator may set.
STATUSES = ("available", "creating", "deleting", "error", "error_deleting")
RESET = closed({"status": {"type": "string", "enum": list(STATUSES)}}, ["status"])
PROGRESS: Schema = {"type": "string", "pattern": "^(100|[0-9]{1,2})%$"}
REPORT = closed({"status": {"type": "string", "enum": list(STATUSES)}, "progress": PROGRESS}, ["status"])

# Other keys were always passed over.
LIST: dict[str, Schema] = {
    "limit": LIMIT,
    "marker": MARKER,
    "offset": LIMIT,
    "with_count": BOOLEAN,
    "*": multi(STRING),
}
