"""Bodies and query keys of the attachment routes."""

from __future__ import annotations

from kilonova.http.api import multi
from kilonova.http.pagination import LIMIT, MARKER
from kilonova.http.parameter_types import UUID, Schema, request_body

MODE: Schema = {"type": "string", "enum": ["ro", "rw"]}
# Other keys of a connector depend on the back end.
CONNECTOR: Schema = {
    "type": "object",
    "properties": {"mode": MODE, "mountpoint": {"type": ["string", "null"], "maxLength": 255}},
}
SERVER: Schema = {"anyOf": [UUID, {"type": "null"}]}

CREATE = request_body(
    "attachment",
    {
        "volume_uuid": UUID,
        "instance_uuid": SERVER,
        "connector": {**CONNECTOR, "type": ["object", "null"]},
        "mode": MODE,
    },
    ["volume_uuid"],
)
UPDATE = request_body("attachment", {"connector": {**CONNECTOR, "minProperties": 1}}, ["connector"])
# Unknown keys are ignored.
LIST: dict[str, Schema] = {
    "limit": LIMIT,
    "marker": MARKER,
    "offset": LIMIT,
    "*": multi({"type": "string"}),
}
