"""Routes of the version documents and the OpenAPI document."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context, Response
from kilonova.share.api import api

_MEDIA = {"base": "application/json", "type": "application/vnd.openstack.share+json;version=1"}


@api.document("GET", "/", status=300)
async def versions(ctx: Context) -> Response:
    """List the versions of the API."""
    return Response({"versions": [_version(ctx)]})


@api.document("GET", "/v2")
async def current(ctx: Context) -> Response:
    """Show version 2 and its range of microversions."""
    return Response({"versions": [_version(ctx)]})


@api.document("GET", "/openapi.json", query={"version": {"type": "string"}})
async def openapi(ctx: Context) -> Response:
    """Describe the API at one microversion (query key `version`; the newest if none is given)."""
    from kilonova.http.openapi import document_json

    return Response(document_json(api, ctx.query_one("version")), headers={"Content-Type": "application/json"})


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
            {"rel": "self", "href": f"{base}/v2/"},
        ],
        "media-types": [_MEDIA],
    }
