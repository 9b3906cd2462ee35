"""Bodies and query keys of the attachment routes."""

from __future__ import annotations

from kilonova.http.api import multi
from kilonova.http.pagination import LIMIT, MARKER
from kilonova.http.pieces import UUID, Schema, closed

MODE: Schema = {"type": "string", "enum": ["ro", "rw"]}
# What a host says of itself is between it and the back end. A mode and the guest's device may be among it.
CONNECTOR: Schema = {
    "type": "object",
    "properties": {"mode": MODE, "mountpoint": {"type": ["string", "null"], "maxLength": 255}},
}
SERVER: Schema = {"anyOf": [UUID, {"type": "null"}]}

CREATE = closed(
    {
        "attachment": closed(
            {
                "volume_uuid": UUID,
                "instance_uuid": SERVER,
                "connector": {**CONNECTOR, "type": ["object", "null"]},
                "mode": MODE,
            },
            ["volume_uuid"],
        )
    },
    ["attachment"],
)
UPDATE = closed(
    {"attachment": closed({"connector": {**CONNECTOR, "minProperties": 1}}, ["connector"])},
    ["attachment"],
)
# Other keys were always passed over.
LIST: dict[str, Schema] = {
    "limit": LIMIT,
    "marker": MARKER,
    "offset": LIMIT,
    "*": multi({"type": "string"}),
}
