"""The version documents, the schemas that clients fetch, and what the service can do."""

from __future__ import annotations

from typing import Any

from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound
from kilonova.image import schema
from kilonova.image.api import api

# Hidden images and the second hash came with 2.7; what 2.6 and 2.8 brought (import, stores) is not offered.
VERSIONS = ("v2.9", "v2.7", "v2.5", "v2.4", "v2.3", "v2.2", "v2.1", "v2.0")


def _versions(ctx: Context) -> dict[str, Any]:
    link = {"rel": "self", "href": f"{ctx.base_url()}/v2/"}
    return {
        "versions": [
            {"id": version, "status": "SUPPORTED" if place else "CURRENT", "links": [link]}
            for place, version in enumerate(VERSIONS)
        ]
    }


@api.document("GET", "/")
async def root(ctx: Context) -> Answer:
    """The versions of the API, to choose from."""
    return Answer(_versions(ctx), status=300)


async def versions(ctx: Context) -> Answer:
    """The versions of the API."""
    return Answer(_versions(ctx))


for _path in ("/versions", "/v2"):
    api.document("GET", _path)(versions)


@api.route("GET", "/v2/schemas/{name}")
async def show_schema(ctx: Context, name: str) -> Answer:
    """The JSON Schema of images, members and lists of them."""
    documents = {"image": schema.image_document, "member": schema.member_document}
    one = documents.get(name.removesuffix("s"))
    if one is None:
        raise NotFound("The resource could not be found.")
    return Answer(schema.list_document(name, one()) if name.endswith("s") else one())


@api.route("GET", "/v2/info/import")
async def import_methods(ctx: Context) -> Answer:
    """The ways to import an image: none, data is uploaded."""
    methods = {"description": "Import methods available.", "type": "array", "value": []}
    return Answer({"import-methods": methods})


@api.route("GET", "/v2/info/stores")
async def stores(ctx: Context) -> Answer:
    """Refused: there is one store and no choice."""
    raise NotFound("Multi backend is not supported at this site.")
