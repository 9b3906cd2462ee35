"""Declares the version documents and the OpenAPI document of an API with microversions and one major version."""

from __future__ import annotations

from typing import Any

from kilonova.http.api import Api
from kilonova.http.context import Context, Response


def declare_documents(api: Api, *, media_type: str, updated: str) -> None:
    """`media_type` and `updated` are what the public API has in its documents."""

    @api.document("GET", "/", status=300)
    async def versions(ctx: Context) -> Response:
        """List the versions of the API."""
        return Response({"versions": [version(ctx)]})

    @api.document("GET", f"/v{api.major}")
    async def current(ctx: Context) -> Response:
        """Show the only version and its range of microversions."""
        return Response({"versions": [version(ctx)]})

    @api.document("GET", "/openapi.json", query={"version": {"type": "string"}})
    async def openapi(ctx: Context) -> Response:
        """Describe the API at one microversion (query key `version`; the newest if none is given)."""
        from kilonova.http.openapi import document_json

        return Response(document_json(api, ctx.query_one("version")), headers={"Content-Type": "application/json"})

    def version(ctx: Context) -> dict[str, Any]:
        base = ctx.base_url()
        return {
            "id": f"v{api.major}.0",
            "status": "CURRENT",
            "version": f"{api.major}.{api.high}",
            "min_version": f"{api.major}.{api.low}",
            "updated": updated,
            "links": [
                {"rel": "describedby", "type": "application/json", "href": f"{base}/openapi.json"},
                {"rel": "self", "href": f"{base}/v{api.major}/"},
            ],
            "media-types": [{"base": "application/json", "type": media_type}],
        }
