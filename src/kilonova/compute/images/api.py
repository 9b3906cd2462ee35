"""Routes of images: the old ways to the image service, asked in the caller's name. That service says who may what."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.images import schemas, views
from kilonova.compute.servers import create
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.pagination import limit_of, next_link

Item = dict[str, Any]
PROPERTY = "property-"
# Filters, and what the image service calls them.
_PLAIN = {"name": "name", "minDisk": "min_disk", "minRam": "min_ram", "type": "image_type"}


@api.route("GET", "/images", query=schemas.LIST, shows=("images", "image brief", True))
async def index(ctx: Context) -> Answer:
    """List images."""
    return await _list(ctx, "/images", "image brief")


@api.route("GET", "/images/detail", query=schemas.LIST, shows=("images", "image", True))
async def detail(ctx: Context) -> Answer:
    """List images with their details."""
    return await _list(ctx, "/images/detail", "image")


@api.route("GET", "/images/{image_id}", shows=("image", "image", False))
async def show(ctx: Context, image_id: str) -> Answer:
    """Show an image."""
    return Answer({"image": ctx.render("image", await _image(ctx, image_id))})


@api.route("DELETE", "/images/{image_id}", status=204)
async def delete(ctx: Context, image_id: str) -> Answer:
    """Delete an image."""
    await _image(ctx, image_id)
    await ctx.services.image.delete(image_id, ctx.auth_token)
    return Answer()


# Their metadata


@api.route("GET", "/images/{image_id}/metadata")
async def show_metadata(ctx: Context, image_id: str) -> Answer:
    """Show the metadata of an image."""
    return Answer({"metadata": views.metadata(await _image(ctx, image_id))})


@api.route("POST", "/images/{image_id}/metadata", body=schemas.METADATA_OF_IMAGE)
async def add_metadata(ctx: Context, image_id: str) -> Answer:
    """Add to the metadata of an image, and change it."""
    known = views.metadata(await _image(ctx, image_id))
    return Answer({"metadata": await _write(ctx, image_id, known, {**known, **ctx.body["metadata"]})})


@api.route("PUT", "/images/{image_id}/metadata", body=schemas.METADATA_OF_IMAGE)
async def replace_metadata(ctx: Context, image_id: str) -> Answer:
    """Replace all the metadata of an image."""
    known = views.metadata(await _image(ctx, image_id))
    return Answer({"metadata": await _write(ctx, image_id, known, ctx.body["metadata"])})


@api.route("GET", "/images/{image_id}/metadata/{key}")
async def show_item(ctx: Context, image_id: str, key: str) -> Answer:
    """Show one item of an image's metadata."""
    known = views.metadata(await _image(ctx, image_id))
    _check_known(known, key)
    return Answer({"meta": {key: known[key]}})


@api.route("PUT", "/images/{image_id}/metadata/{key}", body=schemas.ITEM)
async def write_item(ctx: Context, image_id: str, key: str) -> Answer:
    """Write one item of an image's metadata."""
    asked: dict[str, str] = ctx.body["meta"]
    if key not in asked:
        raise BadRequest("Request body and URI mismatch")
    known = views.metadata(await _image(ctx, image_id))
    await _write(ctx, image_id, known, {**known, **asked})
    return Answer({"meta": asked})


@api.route("DELETE", "/images/{image_id}/metadata/{key}", status=204)
async def delete_item(ctx: Context, image_id: str, key: str) -> Answer:
    """Delete one item of an image's metadata."""
    known = views.metadata(await _image(ctx, image_id))
    _check_known(known, key)
    await _write(ctx, image_id, known, {name: value for name, value in known.items() if name != key})
    return Answer()


def _check_known(known: dict[str, str], key: str) -> None:
    if key not in known:
        raise NotFound("Metadata item was not found")


async def _write(ctx: Context, image_id: str, known: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
    if reserved := wanted.keys() & views.RESERVED:
        raise BadRequest(f"{min(reserved)} is no metadata: it says what the image itself is.")
    await create.check_metadata(ctx, wanted)
    changes = [{"op": "remove", "path": _path(key)} for key in known.keys() - wanted.keys()]
    for key, value in wanted.items():
        if known.get(key) != value:
            changes.append({"op": "replace" if key in known else "add", "path": _path(key), "value": value})
    if changes:
        await ctx.services.image.patch(image_id, changes, ctx.auth_token)
    return wanted


def _path(key: str) -> str:
    """The place of a property in a JSON patch."""
    return "/" + key.replace("~", "~0").replace("/", "~1")


# Reading


async def _image(ctx: Context, image_id: str) -> Item:
    found: Item | None = await ctx.services.image.show(image_id, ctx.auth_token)
    if found is None:
        raise NotFound("Image not found.")
    return found


async def _list(ctx: Context, path: str, view: str) -> Answer:
    limit = limit_of(ctx)
    found = await ctx.services.image.list(ctx.auth_token, _filters(ctx), limit)
    body: dict[str, Any] = {"images": [ctx.render(view, image) for image in found]}
    if "limit" in ctx.query and found and (more := next_link(ctx, path, found[-1]["id"], len(found) == limit)):
        body["images_links"] = more
    return Answer(body)


def _filters(ctx: Context) -> dict[str, str]:
    asked = {name: values[-1] for name, values in ctx.query.items()}
    filters = {word: asked[name] for name, word in _PLAIN.items() if name in asked}
    filters |= {name.removeprefix(PROPERTY): value for name, value in asked.items() if name.startswith(PROPERTY)}
    if "marker" in asked:
        filters["marker"] = asked["marker"]
    if "status" in asked:
        filters["status"] = _statuses(asked["status"])
    if "server" in asked:
        # The server's id, or its address.
        filters["instance_uuid"] = asked["server"].rstrip("/").rsplit("/", 1)[-1]
    if "changes-since" in asked:
        filters["updated_at"] = f"gte:{clock.iso(clock.parse(asked['changes-since']))}"
    return filters


def _statuses(shown: str) -> str:
    """What the image service calls what is shown so."""
    words = [word for word, (status, _) in views.STATUSES.items() if status == shown.upper()]
    return f"in:{','.join(words)}" if words else shown
