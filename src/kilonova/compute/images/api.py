"""Proxy routes of images: old clients reach the image service through compute, with their own token."""

from __future__ import annotations

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.images import views
from kilonova.compute.servers import create
from kilonova.http import Context, Response, multi, repeatable
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.pagination import LIMIT, MARKER, next_link, page_limit
from kilonova.http.parameter_types import DATE_TIME, METADATA, STRING, Schema, closed_object
from kilonova.image.client import ATTRIBUTES, Image

INTEGER: Schema = {"type": "string", "pattern": "^[0-9]{1,9}$"}
LIST: dict[str, Schema] = {
    **repeatable({"limit": LIMIT, "marker": MARKER, "changes-since": DATE_TIME, "minDisk": INTEGER, "minRam": INTEGER}),
    **repeatable(dict.fromkeys(("name", "status", "server", "type"), STRING)),
    # Unknown keys are allowed; only `property-…` has a meaning.
    "*": multi(STRING),
}
METADATA_OF_IMAGE: Schema = closed_object({"metadata": METADATA}, ["metadata"])
ITEM: Schema = closed_object({"meta": {**METADATA, "minProperties": 1, "maxProperties": 1}}, ["meta"])

PROPERTY = "property-"
# Filters, and their names at the image service.
_FILTERS = {"name": "name", "minDisk": "min_disk", "minRam": "min_ram", "type": "image_type"}


@api.route("GET", "/images", authenticated=True, query=LIST, shows=("images", "image brief", True))
async def index(ctx: Context) -> Response:
    """List images."""
    return await _list(ctx, "/images", "image brief")


@api.route("GET", "/images/detail", authenticated=True, query=LIST, shows=("images", "image", True))
async def detail(ctx: Context) -> Response:
    """List images with their details."""
    return await _list(ctx, "/images/detail", "image")


@api.route("GET", "/images/{image_id}", authenticated=True, shows=("image", "image", False))
async def show(ctx: Context, image_id: str) -> Response:
    """Show an image."""
    return Response({"image": ctx.render("image", await _image(ctx, image_id))})


@api.route("DELETE", "/images/{image_id}", authenticated=True, status=204)
async def delete(ctx: Context, image_id: str) -> Response:
    """Delete an image."""
    await _image(ctx, image_id)
    await ctx.services.image.delete(image_id, ctx.auth_token)
    return Response()


# Metadata


@api.route("GET", "/images/{image_id}/metadata", authenticated=True)
async def show_metadata(ctx: Context, image_id: str) -> Response:
    """Show the metadata of an image."""
    return Response({"metadata": (await _image(ctx, image_id)).properties})


@api.route("POST", "/images/{image_id}/metadata", authenticated=True, body=METADATA_OF_IMAGE)
async def add_metadata(ctx: Context, image_id: str) -> Response:
    """Add or change items of an image's metadata."""
    known = (await _image(ctx, image_id)).properties
    return Response({"metadata": await _write(ctx, image_id, known, {**known, **ctx.body["metadata"]})})


@api.route("PUT", "/images/{image_id}/metadata", authenticated=True, body=METADATA_OF_IMAGE)
async def replace_metadata(ctx: Context, image_id: str) -> Response:
    """Replace all the metadata of an image."""
    known = (await _image(ctx, image_id)).properties
    return Response({"metadata": await _write(ctx, image_id, known, ctx.body["metadata"])})


@api.route("GET", "/images/{image_id}/metadata/{key}", authenticated=True)
async def show_item(ctx: Context, image_id: str, key: str) -> Response:
    """Show one item of an image's metadata."""
    known = (await _image(ctx, image_id)).properties
    _check_known(known, key)
    return Response({"meta": {key: known[key]}})


@api.route("PUT", "/images/{image_id}/metadata/{key}", authenticated=True, body=ITEM)
async def write_item(ctx: Context, image_id: str, key: str) -> Response:
    """Write one item of an image's metadata."""
    item: dict[str, str] = ctx.body["meta"]
    if key not in item:
        raise BadRequest("Request body and URI mismatch")
    known = (await _image(ctx, image_id)).properties
    await _write(ctx, image_id, known, {**known, **item})
    return Response({"meta": item})


@api.route("DELETE", "/images/{image_id}/metadata/{key}", authenticated=True, status=204)
async def delete_item(ctx: Context, image_id: str, key: str) -> Response:
    """Delete one item of an image's metadata."""
    known = (await _image(ctx, image_id)).properties
    _check_known(known, key)
    await _write(ctx, image_id, known, {name: value for name, value in known.items() if name != key})
    return Response()


def _check_known(known: dict[str, str], key: str) -> None:
    if key not in known:
        raise NotFound("Metadata item was not found")


async def _write(ctx: Context, image_id: str, known: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
    if reserved := wanted.keys() & ATTRIBUTES:
        raise BadRequest(f"{min(reserved)} cannot be set as metadata: it is an attribute of the image.")
    await create.check_metadata(ctx, wanted)
    changes = [{"op": "remove", "path": _path(key)} for key in known.keys() - wanted.keys()]
    for key, value in wanted.items():
        if known.get(key) != value:
            changes.append({"op": "replace" if key in known else "add", "path": _path(key), "value": value})
    if changes:
        await ctx.services.image.patch(image_id, changes, ctx.auth_token)
    return wanted


def _path(key: str) -> str:
    """The JSON pointer of a property."""
    return "/" + key.replace("~", "~0").replace("/", "~1")


# Reading


async def _image(ctx: Context, image_id: str) -> Image:
    found = await ctx.services.image.show(image_id, ctx.auth_token)
    if found is None:
        raise NotFound("Image not found.")
    return found


async def _list(ctx: Context, path: str, view: str) -> Response:
    limit = page_limit(ctx)
    found = await ctx.services.image.list(ctx.auth_token, _filters(ctx), limit)
    body: dict[str, object] = {"images": await ctx.render_all(view, found)}
    if "limit" in ctx.query and found and (more := next_link(ctx, path, found[-1].id, len(found) == limit)):
        body["images_links"] = more
    return Response(body)


def _filters(ctx: Context) -> dict[str, str]:
    query = {name: values[-1] for name, values in ctx.query.items()}
    filters = {word: query[name] for name, word in _FILTERS.items() if name in query}
    filters |= {name.removeprefix(PROPERTY): value for name, value in query.items() if name.startswith(PROPERTY)}
    if "marker" in query:
        filters["marker"] = query["marker"]
    if "status" in query:
        filters["status"] = _statuses(query["status"])
    if "server" in query:
        # The server's id, or its URL.
        filters["instance_uuid"] = query["server"].rstrip("/").rsplit("/", 1)[-1]
    if "changes-since" in query:
        filters["updated_at"] = f"gte:{clock.iso(clock.parse(query['changes-since']))}"
    return filters


def _statuses(shown: str) -> str:
    """The filter for the image service's statuses that compute shows as this one."""
    names = [name for name, (status, _) in views.STATUSES.items() if status == shown.upper()]
    return f"in:{','.join(names)}" if names else shown
