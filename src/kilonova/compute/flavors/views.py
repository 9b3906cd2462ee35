"""Views of flavors."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.flavors.model import Flavor
from kilonova.http import Context, Field, View, attribute

EXTRA_SPECS = "os_compute_api:os-flavor-extra-specs:index"
TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}
INTEGER = {"type": "integer"}
LINKS = {"type": "array", "items": {"type": "object"}}
SPECS = {"type": "object", "additionalProperties": TEXT}


def links(flavor: Flavor, ctx: Context) -> list[dict[str, str]]:
    return ctx.links(f"/flavors/{flavor.flavor_id}")


def swap_or_empty(flavor: Flavor, ctx: Context) -> int | str:
    return flavor.swap or ""


api.view(
    View(
        "flavor summary",
        {
            "id": attribute("flavor_id", TEXT),
            "name": attribute("name", TEXT),
            "description": attribute("description", NULLABLE),
            "links": Field(links, LINKS),
        },
    )
)

api.view(
    View(
        "flavor",
        {
            "id": attribute("flavor_id", TEXT),
            "name": attribute("name", TEXT),
            "description": attribute("description", NULLABLE),
            "ram": attribute("ram", INTEGER),
            "disk": attribute("disk", INTEGER),
            "vcpus": attribute("vcpus", INTEGER),
            "swap": attribute("swap", INTEGER),
            "OS-FLV-EXT-DATA:ephemeral": attribute("ephemeral", INTEGER),
            "os-flavor-access:is_public": attribute("is_public", {"type": "boolean"}),
            "extra_specs": attribute("extra_specs", SPECS, policy=EXTRA_SPECS),
            "links": Field(links, LINKS),
        },
    )
)
