"""Version documents: what clients ask before they ask anything else."""

from __future__ import annotations

from kilonova.http import Answer, Context
from kilonova.identity.core import Json, api, root


def _version(ctx: Context) -> Json:
    return {
        "id": "v3.14",
        "status": "stable",
        "updated": "2020-04-07T00:00:00Z",
        "links": [{"rel": "self", "href": f"{root(ctx)}/v3/"}],
        "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}],
    }


@api.document("GET", "/")
async def versions(ctx: Context) -> Answer:
    """List the versions of the service."""
    return Answer({"versions": {"values": [_version(ctx)]}}, status=300)


@api.document("GET", "/v3")
async def version(ctx: Context) -> Answer:
    """Show version 3."""
    return Answer({"version": _version(ctx)})
