"""How flavors are shown."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.http import Context, Field, View, col

EXTRA_SPECS = "os_compute_api:os-flavor-extra-specs:index"
TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}
WHOLE = {"type": "integer"}
LINKS = {"type": "array", "items": {"type": "object"}}
SPECS = {"type": "object", "additionalProperties": TEXT}


def links(row: Any, ctx: Context) -> list[dict[str, str]]:
    return ctx.links(f"/flavors/{row['flavor_id']}")


def empty_for_zero(row: Any, ctx: Context) -> int | str:
    return row["swap"] or ""


api.view(
    View(
        "flavor summary",
        {
            "id": col("flavor_id", TEXT),
            "name": col("name", TEXT),
            "description": col("description", NULLABLE),
            "links": Field(links, LINKS),
        },
    )
)

api.view(
    View(
        "flavor",
        {
            "id": col("flavor_id", TEXT),
            "name": col("name", TEXT),
            "description": col("description", NULLABLE),
            "ram": col("ram", WHOLE),
            "disk": col("disk", WHOLE),
            "vcpus": col("vcpus", WHOLE),
            "swap": col("swap", WHOLE),
            "OS-FLV-EXT-DATA:ephemeral": col("ephemeral", WHOLE),
            "os-flavor-access:is_public": col("is_public", {"type": "boolean"}),
            "extra_specs": col("extra_specs", SPECS, policy=EXTRA_SPECS),
            "links": Field(links, LINKS),
        },
    )
)
