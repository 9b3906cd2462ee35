"""docs/api/share.md: routes and history of the Shared File System API."""

from __future__ import annotations

from pathlib import Path

from kilonova.docs.coverage import route_table
from kilonova.docs.history import entry
from kilonova.docs.markdown import page as markdown
from kilonova.share import build


def page(root: Path) -> str:
    api = build()
    return markdown(
        "# The Shared File System API",
        f"Versions {api.major}.{api.low} to {api.major}.{api.high}, below `{api.prefix}/v2`, with or without the "
        "project in the path. The version is in the header `X-OpenStack-Manila-API-Version`. Snapshots, share "
        "networks and servers, share groups, replicas, transfers, messages, public shares and further share types are "
        "not implemented. The OpenAPI document of any version is at "
        f"`{api.prefix}/openapi.json?version={api.major}.{api.high}`.",
        "## Routes",
        route_table(api, root),
        "## History",
        *(entry(version, "###") for version in api.microversions),
    )
