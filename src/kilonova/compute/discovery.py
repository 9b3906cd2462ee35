"""Version documents and the OpenAPI document."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.http import Context, Response
from kilonova.http.errors import NotFound

_ROOTS = {"v2.0": "/v2", "v2.1": "/v2.1"}
_MEDIA = "application/vnd.openstack.compute+json;version="
_STATES: dict[str, dict[str, str]] = {
    "v2.0": {"status": "DEPRECATED", "version": "", "min_version": "", "updated": "2025-07-04T12:00:00Z"},
    "v2.1": {
        "status": "CURRENT",
        "version": f"{api.major}.{api.high}",
        "min_version": f"{api.major}.{api.low}",
        "updated": "2013-07-23T11:33:21Z",
    },
}


@api.document("GET", "/")
async def versions(ctx: Context) -> Response:
    """List the versions of the API."""
    return Response({"versions": [_short_version(ctx, name) for name in _ROOTS]})


@api.document("GET", "/v2.1")
async def current(ctx: Context) -> Response:
    """Show version 2.1 and its range of microversions."""
    return Response({"version": _version(ctx, "v2.1")})


@api.document("GET", "/v2")
async def frozen(ctx: Context) -> Response:
    """Show version 2.0, which has no microversions."""
    return Response({"version": _version(ctx, "v2.0")})


@api.route("GET", "/versions/{version_id}", authenticated=True, query={})
async def show_version(ctx: Context, version_id: str) -> Response:
    """Show a version."""
    if version_id not in _ROOTS:
        raise NotFound(f"There is no version {version_id}.")
    return Response({"version": _version(ctx, version_id)})


async def choices(ctx: Context) -> Response:
    """Respond to a path without a version with the versions to choose from."""
    return Response({"choices": [_choice(ctx, name) for name in _ROOTS]}, 300)


api.fallback = choices


@api.document("GET", "/openapi.json", query={"version": {"type": "string"}})
async def openapi(ctx: Context) -> Response:
    """Describe the API at one microversion (query key `version`, by default the newest)."""
    from kilonova.http.openapi import document_json

    return Response(document_json(api, ctx.query_one("version")), headers={"Content-Type": "application/json"})


def _short_version(ctx: Context, name: str) -> dict[str, object]:
    return {"id": name, "links": [_self_link(ctx, name)], **_STATES[name]}


def _version(ctx: Context, name: str) -> dict[str, object]:
    described = {"rel": "describedby", "type": "application/json", "href": f"{ctx.base_url()}/openapi.json"}
    links = [_self_link(ctx, name), described]
    return {**_short_version(ctx, name), "links": links, "media-types": _media(name)}


def _self_link(ctx: Context, name: str) -> dict[str, str]:
    return {"rel": "self", "href": f"{ctx.base_url()}{_ROOTS[name]}/"}


def _choice(ctx: Context, name: str) -> dict[str, object]:
    return {
        "id": name,
        "status": _STATES[name]["status"],
        "links": [{"rel": "self", "href": f"{ctx.base_url()}{_ROOTS[name]}{ctx.params['path']}"}],
        "media-types": _media(name),
    }


def _media(name: str) -> list[dict[str, str]]:
    return [{"base": "application/json", "type": _MEDIA + _ROOTS[name].removeprefix("/v")}]
