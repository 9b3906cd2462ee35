"""Bodies and query keys of the server group routes."""

from __future__ import annotations

from kilonova.compute.server_groups.model import AFFINITY, ANTI_AFFINITY, SOFT
from kilonova.http.pagination import LIMIT
from kilonova.http.pieces import NAME, STRING, Schema, closed, integer

HARD = (ANTI_AFFINITY, AFFINITY)


def policies(*names: str) -> Schema:
    """Before 2.64: a list, of one."""
    return {"type": "array", "items": {"type": "string", "enum": list(names)}, "minItems": 1, "maxItems": 1}


CREATE: Schema = closed(
    {
        "server_group": closed(
            {
                "name": NAME,
                "policy": {"type": "string", "enum": [*HARD, *SOFT]},
                "rules": closed({"max_server_per_host": integer(1)}),
            },
            ["name", "policy"],
        )
    },
    ["server_group"],
)
LIST: dict[str, Schema] = {"all_projects": STRING, "limit": LIMIT, "offset": LIMIT}
