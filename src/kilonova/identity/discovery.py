"""Routes of API discovery: the version documents."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.identity.api import Json, api


def _version(ctx: Context) -> Json:
    return {
        "id": "v3.14",
        "status": "stable",
        "updated": "2020-04-07T00:00:00Z",
        "links": [{"rel": "self", "href": f"{ctx.base_url()}/v3/"}],
        "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}],
    }


@api.document("GET", "/")
async def versions(ctx: Context) -> Response:
    """List the versions of the service."""
    return Response({"versions": {"values": [_version(ctx)]}}, status=300)


@api.document("GET", "/v3")
async def version(ctx: Context) -> Response:
    """Show version 3."""
    return Response({"version": _version(ctx)})
