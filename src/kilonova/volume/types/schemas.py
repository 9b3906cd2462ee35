"""Bodies and query keys of the type routes."""

from __future__ import annotations

from kilonova.http.pieces import BOOLEAN, NAME, STRING, Schema, closed
from kilonova.volume.paging import QUERY

DESCRIPTION: Schema = {"type": ["string", "null"], "maxLength": 255}
IS_PUBLIC = "os-volume-type-access:is_public"
SPECS: Schema = {
    "type": "object",
    "patternProperties": {r"^[a-zA-Z0-9-_:. ]{1,255}$": {"type": ["string", "null"], "maxLength": 255}},
    "additionalProperties": False,
}

CREATE = closed(
    {
        "volume_type": closed(
            {
                "name": NAME,
                "description": DESCRIPTION,
                "extra_specs": {**SPECS, "type": ["object", "null"]},
                IS_PUBLIC: BOOLEAN,
            },
            ["name"],
        )
    },
    ["volume_type"],
)
# Clients spell what is public in either way.
UPDATE = closed(
    {
        "volume_type": closed(
            {
                "name": {"anyOf": [NAME, {"type": "null"}]},
                "description": DESCRIPTION,
                "is_public": BOOLEAN,
                IS_PUBLIC: BOOLEAN,
            }
        )
    },
    ["volume_type"],
)
CREATE_SPECS = closed({"extra_specs": {**SPECS, "minProperties": 1}}, ["extra_specs"])
UPDATE_SPEC: Schema = {**SPECS, "minProperties": 1, "maxProperties": 1}
PROJECT = closed({"project": {"type": "string", "minLength": 1, "maxLength": 255}}, ["project"])
ENCRYPTION: Schema = {"type": "object"}
DEFAULT_TYPE = closed(
    {"default_type": closed({"volume_type": {"type": "string", "minLength": 1, "maxLength": 255}}, ["volume_type"])},
    ["default_type"],
)

# Ternary: `none` stands for both kinds. Anybody may send anything; only an administrator's is read.
LIST: dict[str, Schema] = {**QUERY, "is_public": STRING, "name": STRING, "extra_specs": STRING}
