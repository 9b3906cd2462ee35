"""Bodies and query keys of volumes and snapshots, as compute's clients know them."""

from __future__ import annotations

from kilonova.http.pagination import LIMIT
from kilonova.http.pieces import BOOLEAN, STRING, Schema, closed, integer

TEXT: Schema = {**STRING, "minLength": 1}
# These routes ended before any refused unknown keys.
LIST: dict[str, Schema] = {"limit": LIMIT, "offset": LIMIT, "*": {}}

VOLUME = closed(
    {
        "volume": closed(
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
    },
    ["volume"],
)
SNAPSHOT = closed(
    {
        "snapshot": closed(
            {"volume_id": STRING, "display_name": STRING, "display_description": STRING, "force": BOOLEAN},
            ["volume_id"],
        )
    },
    ["snapshot"],
)
ASSISTED = closed(
    {
        "snapshot": closed(
            {
                "volume_id": TEXT,
                "create_info": closed(
                    {"snapshot_id": TEXT, "type": {**STRING, "enum": ["qcow2"]}, "new_file": TEXT, "id": TEXT},
                    ["snapshot_id", "type", "new_file"],
                ),
            },
            ["volume_id", "create_info"],
        )
    },
    ["snapshot"],
)
