"""Bodies and query keys of the volume and snapshot proxies, and of assisted snapshots."""

from __future__ import annotations

from kilonova.http import repeatable
from kilonova.http.pagination import LIMIT
from kilonova.http.parameter_types import BOOLEAN, STRING, Schema, closed_object, integer, request_body

TEXT: Schema = {**STRING, "minLength": 1}
# Unknown keys are allowed: these routes were removed before the microversions that close queries.
LIST = repeatable({"limit": LIMIT, "offset": LIMIT, "*": {}})

VOLUME = request_body(
    "volume",
    {
        "size": integer(1),
        "display_name": STRING,
        "display_description": STRING,
        "availability_zone": STRING,
        "volume_type": STRING,
        "snapshot_id": STRING,
        "metadata": {"type": "object"},
    },
    ["size"],
)
SNAPSHOT = request_body(
    "snapshot",
    {"volume_id": STRING, "display_name": STRING, "display_description": STRING, "force": BOOLEAN},
    ["volume_id"],
)
ASSISTED = request_body(
    "snapshot",
    {
        "volume_id": TEXT,
        "create_info": closed_object(
            {"snapshot_id": TEXT, "type": {**STRING, "enum": ["qcow2"]}, "new_file": TEXT, "id": TEXT},
            ["snapshot_id", "type", "new_file"],
        ),
    },
    ["volume_id", "create_info"],
)
