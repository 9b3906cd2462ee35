"""Bodies of volume actions."""

from __future__ import annotations

from kilonova.http.parameter_types import BOOLEAN, UUID, Schema, closed_object
from kilonova.volume.conversion import WRITABLE
from kilonova.volume.schemas import METADATA, SIZE
from kilonova.volume.volumes.states import SETTABLE

_TEXT: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"], "maxLength": 255}
_CONNECTOR: Schema = {"type": "object", "minProperties": 1}

EXTEND = closed_object({"new_size": SIZE}, ["new_size"])
EXTEND_COMPLETION = closed_object({"error": BOOLEAN})
REIMAGE = closed_object({"image_id": UUID, "reimage_reserved": BOOLEAN}, ["image_id"])
REVERT = closed_object({"snapshot_id": UUID}, ["snapshot_id"])
RETYPE = closed_object({"new_type": _TEXT, "migration_policy": {"enum": ["never", "on-demand", None]}}, ["new_type"])
MIGRATE: Schema = {"type": "object"}
RESET_STATUS = closed_object(
    {
        "status": {"enum": sorted(SETTABLE)},
        "attach_status": {"enum": ["attached", "detached"]},
        "migration_status": {"enum": ["none", None]},
    },
    minProperties=1,
)

UPLOAD = closed_object(
    {
        "image_name": _TEXT,
        "force": BOOLEAN,
        "disk_format": {"enum": [*WRITABLE, None]},
        "container_format": {"enum": ["bare", None]},
        "visibility": {"enum": ["community", "public", "private", "shared"]},
        "protected": BOOLEAN,
    },
    ["image_name"],
)

BOOTABLE = closed_object({"bootable": BOOLEAN}, ["bootable"])
READONLY = closed_object({"readonly": BOOLEAN}, ["readonly"])
SET_IMAGE_METADATA = closed_object({"metadata": METADATA}, ["metadata"])
UNSET_IMAGE_METADATA = closed_object({"key": _TEXT}, ["key"])

ATTACH = closed_object(
    {
        "instance_uuid": {**UUID, "type": ["string", "null"]},
        "host_name": _TEXT_OR_NULL,
        "mountpoint": _TEXT,
        "mode": {"enum": ["rw", "ro"]},
    },
    ["mountpoint"],
)
DETACH: Schema = {**closed_object({"attachment_id": {**UUID, "type": ["string", "null"]}}), "type": ["object", "null"]}
FORCE_DETACH: Schema = {
    **closed_object({"attachment_id": {**UUID, "type": ["string", "null"]}, "connector": {"type": ["object", "null"]}}),
    "type": ["object", "null"],
}
CONNECT = closed_object({"connector": _CONNECTOR}, ["connector"])
DISCONNECT = closed_object({"connector": {"type": ["object", "null"]}}, ["connector"])
