"""Bodies and query keys of the flavor routes."""

from __future__ import annotations

from kilonova.http.pagination import LIMIT, MARKER
from kilonova.http.pieces import BOOLEAN, NAME, STRING, Schema, closed, integer

DESCRIPTION: Schema = {"type": ["string", "null"], "maxLength": 65535}
ID: Schema = {
    "anyOf": [
        {"type": "null"},
        {"type": "number"},
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^(?! )[a-zA-Z0-9. _-]+(?<! )$"},
    ]
}
RXTX_FACTOR: Schema = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0, "maximum": 3.40282e38},
        {"type": "string", "pattern": r"^[0-9]{1,30}(\.[0-9]{1,30})?$", "not": {"pattern": r"^[0.]+$"}},
    ]
}
SPEC_KEY = r"^[a-zA-Z0-9-_:. ]{1,255}$"
SPEC_VALUE: Schema = {"type": ["string", "number"], "maxLength": 255}
TENANT = closed({"tenant": {"type": "string", "minLength": 1, "maxLength": 255}}, ["tenant"])

CREATE = closed(
    {
        "flavor": closed(
            {
                "name": NAME,
                "id": ID,
                "ram": integer(1),
                "vcpus": integer(1),
                "disk": integer(0),
                "OS-FLV-EXT-DATA:ephemeral": integer(0),
                "swap": integer(0),
                "os-flavor-access:is_public": BOOLEAN,
                "description": DESCRIPTION,
            },
            ["name", "ram", "vcpus", "disk"],
        )
    },
    ["flavor"],
)
UPDATE = closed({"flavor": closed({"description": DESCRIPTION}, ["description"])}, ["flavor"])
CREATE_SPECS = closed(
    {"extra_specs": {"type": "object", "patternProperties": {SPEC_KEY: SPEC_VALUE}, "additionalProperties": False}},
    ["extra_specs"],
)
UPDATE_SPEC: Schema = {
    "type": "object",
    "patternProperties": {SPEC_KEY: SPEC_VALUE},
    "additionalProperties": False,
    "minProperties": 1,
    "maxProperties": 1,
}

# The name of each sort key in the table; what may be null sorts like nothing.
SORT_KEYS = {
    "created_at": "created_at",
    "description": "COALESCE(description, '')",
    "ephemeral_gb": "ephemeral",
    "flavorid": "flavor_id",
    "id": "id",
    "is_public": "is_public",
    "memory_mb": "ram",
    "name": "name",
    "root_gb": "disk",
    "swap": "swap",
    "updated_at": "COALESCE(updated_at, 0)",
    "vcpus": "vcpus",
    # Every flavor has the same weight and none can be disabled.
    "vcpu_weight": "id",
    "disabled": "disabled",
    "rxtx_factor": "rxtx_factor",
}
SORT_KEY: Schema = {"type": "string", "enum": sorted(set(SORT_KEYS) - {"rxtx_factor"})}
OLD_SORT_KEY: Schema = {"type": "string", "enum": sorted(SORT_KEYS)}
_WHOLE: Schema = {"type": "string", "pattern": r"^-?[0-9]{1,18}$"}
LIST: dict[str, Schema] = {
    "limit": LIMIT,
    "marker": MARKER,
    "minRam": _WHOLE,
    "minDisk": _WHOLE,
    # Ternary: `none` stands for both kinds. Anybody may send anything; only an administrator's is read.
    "is_public": STRING,
    "name": STRING,
    "sort_key": SORT_KEY,
    "sort_dir": {"type": "string", "enum": ["asc", "desc"]},
}
