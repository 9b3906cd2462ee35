"""Bodies and query keys of the flavor routes."""

from __future__ import annotations

from kilonova.http import repeatable
from kilonova.http.pagination import LIMIT, MARKER
from kilonova.http.parameter_types import BOOLEAN, NAME, STRING, Schema, closed_object, integer, request_body

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
TENANT = closed_object({"tenant": {"type": "string", "minLength": 1, "maxLength": 255}}, ["tenant"])

CREATE = request_body(
    "flavor",
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
UPDATE = request_body("flavor", {"description": DESCRIPTION}, ["description"])
CREATE_SPECS = closed_object(
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

# Sort keys and their SQL expressions, which must not be null.
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
    # All flavors have the same weight.
    "vcpu_weight": "id",
    "disabled": "disabled",
    "rxtx_factor": "rxtx_factor",
}
SORT_KEY: Schema = {"type": "string", "enum": sorted(set(SORT_KEYS) - {"rxtx_factor"})}
OLD_SORT_KEY: Schema = {"type": "string", "enum": sorted(SORT_KEYS), "repeatable": True}
_INTEGER: Schema = {"type": "string", "pattern": r"^-?[0-9]{1,18}$"}
LIST: dict[str, Schema] = repeatable(
    {
        "limit": LIMIT,
        "marker": MARKER,
        "minRam": _INTEGER,
        "minDisk": _INTEGER,
        # A boolean, or `none` for both kinds. Any string is accepted, because it is only read for administrators.
        "is_public": STRING,
        "name": STRING,
        "sort_key": SORT_KEY,
        "sort_dir": {"type": "string", "enum": ["asc", "desc"]},
    }
)
