"""Views of flavors."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.http import Context, Field, View, col

EXTRA_SPECS = "os_compute_api:os-flavor-extra-specs:index"
TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}
INTEGER = {"type": "integer"}
LINKS = {"type": "array", "items": {"type": "object"}}
SPECS = {"type": "object", "additionalProperties": TEXT}


def links(row: Any, ctx: Context) -> list[dict[str, str]]:
    return ctx.links(f"/flavors/{row['flavor_id']}")


def swap_or_empty(row: Any, ctx: Context) -> int | str:
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
            "ram": col("ram", INTEGER),
            "disk": col("disk", INTEGER),
            "vcpus": col("vcpus", INTEGER),
            "swap": col("swap", INTEGER),
            "OS-FLV-EXT-DATA:ephemeral": col("ephemeral", INTEGER),
            "os-flavor-access:is_public": col("is_public", {"type": "boolean"}),
            "extra_specs": col("extra_specs", SPECS, policy=EXTRA_SPECS),
            "links": Field(links, LINKS),
        },
    )
)
