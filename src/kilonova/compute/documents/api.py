"""The version documents, the old list of extensions and the OpenAPI document."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.documents.extensions import EXTENSIONS
from kilonova.compute.documents.views import choice, short_version, version
from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound

VERSIONS = ("v2.0", "v2.1")


@api.document("GET", "/")
async def versions(ctx: Context) -> Answer:
    """List the versions of the API."""
    return Answer({"versions": [short_version(ctx, name) for name in VERSIONS]})


@api.document("GET", "/v2.1")
async def current(ctx: Context) -> Answer:
    """Show version 2.1 and its range of microversions."""
    return Answer({"version": version(ctx, "v2.1")})


@api.document("GET", "/v2")
async def frozen(ctx: Context) -> Answer:
    """Show version 2.0, which knows no microversions."""
    return Answer({"version": version(ctx, "v2.0")})


@api.route("GET", "/versions/{version_id}", query={})
async def show_version(ctx: Context, version_id: str) -> Answer:
    """Show a version."""
    if version_id not in VERSIONS:
        raise NotFound(f"There is no version {version_id}.")
    return Answer({"version": version(ctx, version_id)})


async def choices(ctx: Context) -> Answer:
    """A path that names no version: where it could be found."""
    return Answer({"choices": [choice(ctx, name) for name in VERSIONS]}, 300)


api.fallback = choices


@api.route("GET", "/extensions", policy="os_compute_api:extensions", query={})
async def extensions(ctx: Context) -> Answer:
    """List the extensions that the API was once made of."""
    return Answer({"extensions": list(EXTENSIONS.values())})


@api.route("GET", "/extensions/{alias}", policy="os_compute_api:extensions", query={})
async def extension(ctx: Context, alias: str) -> Answer:
    """Show an extension."""
    if alias not in EXTENSIONS:
        raise NotFound(f"There is no extension {alias}.")
    return Answer({"extension": EXTENSIONS[alias]})


@api.document("GET", "/openapi.json", query={"version": {"type": "string"}})
async def openapi(ctx: Context) -> Answer:
    """Describe the API at one microversion (query key `version`; the newest if none is given)."""
    from kilonova.http.openapi import page

    return Answer(page(api, ctx.query_one("version")), headers={"Content-Type": "application/json"})
