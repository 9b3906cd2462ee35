"""Schemas of block device mappings of a new server, in both syntaxes of the API."""

from __future__ import annotations

from kilonova.http.parameter_types import BOOLEAN, UUID, Schema, closed_object, integer

_TEXT: Schema = {"type": "string", "maxLength": 255}
_COMMON: dict[str, Schema] = {
    "device_name": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[a-zA-Z0-9._/-]*$"},
    "delete_on_termination": BOOLEAN,
    # With any value the device is ignored.
    "no_device": {},
    "virtual_name": _TEXT,
    "volume_size": integer(1),
    "volume_id": UUID,
    "snapshot_id": UUID,
    # Accepted and ignored: connections come from the volume service.
    "connection_info": {"type": "string", "maxLength": 16777215},
}
TAG: Schema = {"type": "string", "minLength": 1, "maxLength": 60, "pattern": "^[^,/]*$"}

OLD_DEVICES: Schema = {"type": "array", "items": closed_object(_COMMON)}
DEVICES: Schema = {
    "type": "array",
    "items": closed_object(
        {
            **_COMMON,
            "source_type": {"type": "string", "enum": ["volume", "image", "snapshot", "blank"]},
            "destination_type": {"type": "string", "enum": ["local", "volume"]},
            "uuid": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[a-zA-Z0-9._-]*$"},
            "image_id": UUID,
            "boot_index": {"type": ["integer", "string", "null"], "pattern": "^-?[0-9]{1,9}$"},
            "guest_format": _TEXT,
            "device_type": _TEXT,
            "disk_bus": _TEXT,
            "tag": TAG,
            "volume_type": {"type": ["string", "null"], "maxLength": 255},
        }
    ),
}
