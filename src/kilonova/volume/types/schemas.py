"""Bodies and query keys of the type routes."""

from __future__ import annotations

from kilonova.http.parameter_types import BOOLEAN, NAME, STRING, Schema, closed_object, request_body
from kilonova.volume.paging import QUERY

DESCRIPTION: Schema = {"type": ["string", "null"], "maxLength": 255}
IS_PUBLIC = "os-volume-type-access:is_public"
SPECS: Schema = {
    "type": "object",
    "patternProperties": {r"^[a-zA-Z0-9-_:. ]{1,255}$": {"type": ["string", "null"], "maxLength": 255}},
    "additionalProperties": False,
}

CREATE = request_body(
    "volume_type",
    {
        "name": NAME,
        "description": DESCRIPTION,
        "extra_specs": {**SPECS, "type": ["object", "null"]},
        IS_PUBLIC: BOOLEAN,
    },
    ["name"],
)
# Clients use either name.
UPDATE = request_body(
    "volume_type",
    {
        "name": {"anyOf": [NAME, {"type": "null"}]},
        "description": DESCRIPTION,
        "is_public": BOOLEAN,
        IS_PUBLIC: BOOLEAN,
    },
)
CREATE_SPECS = closed_object({"extra_specs": {**SPECS, "minProperties": 1}}, ["extra_specs"])
UPDATE_SPEC: Schema = {**SPECS, "minProperties": 1, "maxProperties": 1}
PROJECT = closed_object({"project": {"type": "string", "minLength": 1, "maxLength": 255}}, ["project"])
ENCRYPTION: Schema = {"type": "object"}
DEFAULT_TYPE = request_body(
    "default_type", {"volume_type": {"type": "string", "minLength": 1, "maxLength": 255}}, ["volume_type"]
)

# `is_public` is only read for administrators, so users may send any text.
LIST: dict[str, Schema] = {**QUERY, "is_public": STRING, "name": STRING, "extra_specs": STRING}
