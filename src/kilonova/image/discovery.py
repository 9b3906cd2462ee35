"""Routes of API discovery: version documents, JSON schemas, import methods and stores."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import NotFound
from kilonova.image.api import api
from kilonova.image.images import quotas, schemas

# 2.6 (image import) and 2.8 (multiple stores) are not supported.
VERSIONS = ("v2.9", "v2.7", "v2.5", "v2.4", "v2.3", "v2.2", "v2.1", "v2.0")


def _versions(ctx: Context) -> dict[str, object]:
    link = {"rel": "self", "href": f"{ctx.base_url()}/v2/"}
    return {
        "versions": [
            {"id": version, "status": "SUPPORTED" if index else "CURRENT", "links": [link]}
            for index, version in enumerate(VERSIONS)
        ]
    }


@api.document("GET", "/")
async def root(ctx: Context) -> Response:
    """List the versions of the API (multiple choices)."""
    return Response(_versions(ctx), status=300)


async def versions(ctx: Context) -> Response:
    """List the versions of the API."""
    return Response(_versions(ctx))


for _path in ("/versions", "/v2"):
    api.document("GET", _path)(versions)


@api.route("GET", "/v2/schemas/{name}", authenticated=True)
async def show_schema(ctx: Context, name: str) -> Response:
    """Show the JSON schema of an image, a member, or a list of them."""
    documents = {"image": schemas.image_document, "member": schemas.member_document}
    one = documents.get(name.removesuffix("s"))
    if one is None:
        raise NotFound("The resource could not be found.")
    return Response(schemas.list_document(name, one()) if name.endswith("s") else one())


@api.route("GET", "/v2/info/import", authenticated=True)
async def import_methods(ctx: Context) -> Response:
    """List the import methods: there are none."""
    methods = {"description": "Import methods available.", "type": "array", "value": []}
    return Response({"import-methods": methods})


@api.route("GET", "/v2/info/usage", authenticated=True)
async def usage(ctx: Context) -> Response:
    """Show limits and usage of the caller's project. Sizes are in MiB."""
    quota, used = ctx.services.config.image_quota, await quotas.usage(ctx.db, ctx.token.project_id)
    shown = {
        "image_size_total": {"limit": quota.image_size_total, "usage": used.bytes // quotas.MIB},
        "image_count_total": {"limit": quota.image_count_total, "usage": used.images},
    }
    return Response({"usage": shown})


@api.route("GET", "/v2/info/stores", authenticated=True)
async def stores(ctx: Context) -> Response:
    """Refused: there is only one store."""
    raise NotFound("Multi backend is not supported at this site.")
