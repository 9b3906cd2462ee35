"""The version document, and the description of the API."""

from __future__ import annotations

from kilonova.http import Answer, Context
from kilonova.placement.api import HIGH, LOW, api, dated


@api.route("GET", "/", public=True, query={"*": {}})
async def versions(ctx: Context) -> Answer:
    """Show the version of the API and its range of microversions."""
    version = {
        "id": f"v{api.major}.0",
        "status": "CURRENT",
        "min_version": f"{api.major}.{LOW}",
        "max_version": f"{api.major}.{HIGH}",
        "links": [{"rel": "self", "href": ctx.mount}],
    }
    return dated(ctx, {"versions": [version]})


@api.document("GET", "/openapi.json", query={"version": {"type": "string"}})
async def openapi(ctx: Context) -> Answer:
    """Describe the API at one microversion (query key `version`; the newest if none is given)."""
    from kilonova.http.openapi import page

    return Answer(page(api, ctx.query_one("version")), headers={"Content-Type": "application/json"})
