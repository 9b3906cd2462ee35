"""Bodies and query keys of the server group routes."""

from __future__ import annotations

from kilonova.compute.server_groups.model import AFFINITY, ANTI_AFFINITY, SOFT
from kilonova.http import repeatable
from kilonova.http.pagination import LIMIT
from kilonova.http.parameter_types import NAME, STRING, Schema, closed_object, integer, request_body

HARD = (ANTI_AFFINITY, AFFINITY)


def policies(*names: str) -> Schema:
    """Before 2.64 `policies` was a list with one item."""
    return {"type": "array", "items": {"type": "string", "enum": list(names)}, "minItems": 1, "maxItems": 1}


CREATE: Schema = request_body(
    "server_group",
    {
        "name": NAME,
        "policy": {"type": "string", "enum": [*HARD, *SOFT]},
        "rules": closed_object({"max_server_per_host": integer(1)}),
    },
    ["name", "policy"],
)
LIST = repeatable({"all_projects": STRING, "limit": LIMIT, "offset": LIMIT})
