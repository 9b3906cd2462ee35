"""The version document and the OpenAPI description of the Placement API."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.placement.api import MAX_VERSION, MIN_VERSION, api, with_last_modified


@api.route("GET", "/", public=True, query={"*": {}})
async def versions(ctx: Context) -> Response:
    """Show the version of the API and its range of microversions."""
    version = {
        "id": f"v{api.major}.0",
        "status": "CURRENT",
        "min_version": f"{api.major}.{MIN_VERSION}",
        "max_version": f"{api.major}.{MAX_VERSION}",
        "links": [{"rel": "self", "href": ctx.mount}],
    }
    return with_last_modified(ctx, {"versions": [version]})


@api.document("GET", "/openapi.json", query={"version": {"type": "string"}})
async def openapi(ctx: Context) -> Response:
    """Describe the API at one microversion: query key `version`, by default the newest."""
    from kilonova.http.openapi import document_json

    return Response(document_json(api, ctx.query_one("version")), headers={"Content-Type": "application/json"})
