"""JSON Schema fragments that bodies of the share service have in common."""

from __future__ import annotations

from kilonova.http.parameter_types import Schema

MAX_GIGABYTES = 65536
MAX_METADATA = 128
# Names may be empty and need not be unique.
NAME: Schema = {"type": ["string", "null"], "maxLength": 255, "pattern": r"^[^\x00-\x1f\x7f]*$"}
DESCRIPTION: Schema = {"type": ["string", "null"], "maxLength": 255, "pattern": r"^[^\x00-\x08\x0b-\x1f\x7f]*$"}
METADATA: Schema = {
    "type": "object",
    "patternProperties": {r"^[^\x00]{1,255}$": {"type": "string", "maxLength": 1023, "pattern": r"^[^\x00]*$"}},
    "maxProperties": MAX_METADATA,
    "additionalProperties": False,
}
METADATA_OR_NULL: Schema = {**METADATA, "type": ["object", "null"]}
SIZE: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": MAX_GIGABYTES},
        {"type": "string", "pattern": "^[1-9][0-9]{0,4}$"},
    ]
}
