"""Bodies and query keys of volume attachments."""

from __future__ import annotations

from kilonova.compute.block_devices.schemas import TAG
from kilonova.http import repeatable
from kilonova.http.pagination import LIMIT
from kilonova.http.parameter_types import BOOLEAN, UUID, Schema, request_body

DEVICE: Schema = {
    "type": ["string", "null"],
    "maxLength": 255,
    "pattern": r"(^/dev/x{0,1}[a-z]{0,1}d{0,1})([a-z]+)[0-9]*$",
}
LIST = repeatable({"limit": LIMIT, "offset": LIMIT})

CREATE = request_body(
    "volumeAttachment", {"volumeId": UUID, "device": DEVICE, "tag": TAG, "delete_on_termination": BOOLEAN}, ["volumeId"]
)
UPDATE = request_body(
    "volumeAttachment",
    {
        "volumeId": UUID,
        "delete_on_termination": BOOLEAN,
        "id": UUID,
        "serverId": UUID,
        "device": DEVICE,
        "tag": {**TAG, "type": ["string", "null"]},
    },
    ["volumeId"],
)
