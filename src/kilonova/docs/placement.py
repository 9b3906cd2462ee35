"""docs/api/placement.md: routes of the Placement API with their first version and tests, and the API's history."""

from __future__ import annotations

from pathlib import Path

from kilonova.docs.coverage import route_table
from kilonova.docs.history import entry
from kilonova.docs.markdown import page as markdown
from kilonova.placement.build import build


def page(root: Path) -> str:
    api = build()
    return markdown(
        "# The Placement API",
        f"Versions {api.major}.{api.low} to {api.major}.{api.high}, below `{api.prefix}` and, with `--placement-port`, "
        f"at the root of a port of its own. All {len(api.routes)} routes are implemented. The OpenAPI document of any "
        "version is at `/placement/openapi.json?version=1.39`.",
        "## Routes",
        route_table(api, root),
        "## History",
        *(entry(version, "###") for version in api.microversions),
    )
