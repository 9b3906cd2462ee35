"""The version documents and the OpenAPI document."""

from __future__ import annotations

from typing import Any

from kilonova.http import Answer, Context
from kilonova.volume.api import api

_MEDIA = {"base": "application/json", "type": "application/vnd.openstack.volume+json;version=3"}


@api.document("GET", "/", status=300)
async def versions(ctx: Context) -> Answer:
    """List the versions of the API."""
    return Answer({"versions": [_version(ctx)]})


@api.document("GET", "/v3")
async def current(ctx: Context) -> Answer:
    """Show version 3 and its range of microversions."""
    return Answer({"versions": [_version(ctx)]})


@api.document("GET", "/openapi.json", query={"version": {"type": "string"}})
async def openapi(ctx: Context) -> Answer:
    """Describe the API at one microversion (query key `version`; the newest if none is given)."""
    from kilonova.http.openapi import page

    return Answer(page(api, ctx.query_one("version")), headers={"Content-Type": "application/json"})


def _version(ctx: Context) -> dict[str, Any]:
    base = ctx.base_url()
    return {
        "id": f"v{api.major}.0",
        "status": "CURRENT",
        "version": f"{api.major}.{api.high}",
        "min_version": f"{api.major}.{api.low}",
        "updated": "2023-08-31T00:00:00Z",
        "links": [
            {"rel": "describedby", "type": "application/json", "href": f"{base}/openapi.json"},
            {"rel": "self", "href": f"{base}/v3/"},
        ],
        "media-types": [_MEDIA],
    }
