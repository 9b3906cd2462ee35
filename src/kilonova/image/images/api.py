"""Routes of images and their tags."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, Forbidden, NotFound, TooLarge, UnsupportedMediaType
from kilonova.http.json_body import parse_json
from kilonova.image.api import BODY_LIMIT, api
from kilonova.image.authorization import image_not_found, is_admin, load, policy_target
from kilonova.image.files import ImageFiles
from kilonova.image.images import listing, model, patch
from kilonova.image.images.model import Image
from kilonova.image.images.schemas import CREATE, MAX_PROPERTIES, MAX_TAGS, WRITABLE_ATTRIBUTES
from kilonova.image.images.views import view
from kilonova.store import Row, Transaction


@api.route("GET", "/v2/images", policy="get_images", query=listing.LIST_QUERY)
async def index(ctx: Context) -> Response:
    """List the images that the caller may see."""
    found = await listing.find_images(ctx)
    shown = [view(image) for image in await model.load_details(ctx.db, found)]
    return Response({"images": shown, **listing.links(ctx, found), "schema": "/v2/schemas/images"})


@api.route("GET", "/v2/images/{image_id}", checks=["get_image"])
async def show(ctx: Context, image_id: str) -> Response:
    """Show an image."""
    row = await load(ctx, ctx.db, image_id)
    return Response(view((await model.load_details(ctx.db, [row]))[0]))


@api.route("GET", "/v2/images/{image_id}/tasks", checks=["get_image"])
async def show_tasks(ctx: Context, image_id: str) -> Response:
    """List the tasks of an image: there are none."""
    await load(ctx, ctx.db, image_id)
    return Response({"tasks": []})


@api.route("POST", "/v2/images", checks=["add_image"], body=CREATE, status=201)
async def create(ctx: Context) -> Response:
    """Create an image; its data is uploaded afterwards."""
    body = ctx.body
    row = model.new_row(_owner(ctx, body), body, ctx.now)
    ctx.authorize("add_image", policy_target(row))
    _authorize_visibility(ctx, row)
    properties, tags = _properties(body), sorted(set(body.get("tags", [])))
    async with ctx.db.transaction() as tx:
        image = await model.create(tx, row, properties, tags)
    if image is None:
        raise Conflict(f"Image ID {row['id']} already exists!")
    return Response(view(image), headers={"Location": f"{ctx.base_url()}/v2/images/{row['id']}"})


def _owner(ctx: Context, body: dict[str, Any]) -> str | None:
    owner: str | None = body.get("owner", ctx.token.project_id)
    if owner != ctx.token.project_id and not is_admin(ctx):
        raise Forbidden("You are not permitted to create images owned by another project.")
    return owner


def _authorize_visibility(ctx: Context, row: dict[str, Any]) -> None:
    rule = {"public": "publicize_image", "community": "communitize_image"}.get(row["visibility"])
    if rule is not None:
        ctx.authorize(rule, policy_target(row))


def _properties(body: dict[str, Any]) -> dict[str, str]:
    given = {name: value for name, value in body.items() if name not in WRITABLE_ATTRIBUTES and name != "id"}
    for name, value in given.items():
        patch.check_name(name)
        if not 0 < len(name) <= 255:
            raise BadRequest("The name of a property must have 1 to 255 characters.")
        patch.check_property(name, value)
    if len(given) > MAX_PROPERTIES:
        raise patch.limit_exceeded("properties", MAX_PROPERTIES)
    return {name: value for name, value in given.items() if value is not None}


@api.route("PATCH", "/v2/images/{image_id}", checks=["modify_image"], stream=True)
async def update(ctx: Context, image_id: str) -> Response:
    """Change an image by a JSON patch."""
    await load(ctx, ctx.db, image_id, "modify_image")
    operations = patch.parse(parse_json(await _read_body(ctx)), _patch_format(ctx))
    async with ctx.db.transaction() as tx:
        before = await _lock(tx, image_id)
        after = patch.apply(before, operations)
        if after.row["visibility"] != before.row["visibility"]:
            _authorize_visibility(ctx, after.row)
        if after.row["owner"] != before.row["owner"] and not is_admin(ctx):
            raise Forbidden("You are not permitted to change the owner of an image.")
        image = await model.change(tx, before, after, ctx.now) if after != before else before
    return Response(view(image))


def _patch_format(ctx: Context) -> int:
    kind = ctx.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in patch.MEDIA_TYPES:
        raise UnsupportedMediaType(
            f"Unsupported Content-Type {kind[:80]!r}; supported: {', '.join(patch.MEDIA_TYPES)}."
        )
    return patch.MEDIA_TYPES[kind]


async def _read_body(ctx: Context) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in ctx.stream():
        size += len(chunk)
        if size > BODY_LIMIT:
            raise TooLarge(f"The request body is larger than {BODY_LIMIT} bytes.")
        chunks.append(chunk)
    return b"".join(chunks)


async def _lock(tx: Transaction, image_id: str) -> Image:
    row = await tx.fetch_one("SELECT * FROM images WHERE id = $1 FOR UPDATE", image_id)
    if row is None:
        raise image_not_found(image_id)
    return (await model.load_details(tx, [row]))[0]


@api.route("DELETE", "/v2/images/{image_id}", checks=["delete_image"], status=204)
async def delete(ctx: Context, image_id: str) -> Response:
    """Delete an image with its data."""
    await load(ctx, ctx.db, image_id, "delete_image")
    async with ctx.db.transaction() as tx:
        row = (await _lock(tx, image_id)).row
        if row["protected"]:
            raise Forbidden(f"Image {image_id} is protected and cannot be deleted.")
        await model.remove(tx, image_id)
    _delete_data(ctx, row)
    return Response()


def _delete_data(ctx: Context, row: Row) -> None:
    """Delete the data of a deleted image. A running upload notices the deletion and removes its own file."""
    if row["data_id"] is None:
        return
    files = ImageFiles.of(ctx.services.config)
    if row["status"] != "saving" or not files.is_uploading(row["id"], row["data_id"]):
        files.remove(row["id"], row["data_id"])


@api.route("PUT", "/v2/images/{image_id}/tags/{tag}", checks=["modify_image"], status=204)
async def add_tag(ctx: Context, image_id: str, tag: str) -> Response:
    """Add a tag to an image."""
    await load(ctx, ctx.db, image_id, "modify_image")
    if len(tag) > 255:
        raise BadRequest("A tag must have at most 255 characters.")
    async with ctx.db.transaction() as tx:
        image = await _lock(tx, image_id)
        if tag not in image.tags and len(image.tags) >= MAX_TAGS:
            raise patch.limit_exceeded("tags", MAX_TAGS)
        await model.change(tx, image, image._replace(tags=sorted({*image.tags, tag})), ctx.now)
    return Response()


@api.route("DELETE", "/v2/images/{image_id}/tags/{tag}", checks=["modify_image"], status=204)
async def remove_tag(ctx: Context, image_id: str, tag: str) -> Response:
    """Remove a tag from an image."""
    await load(ctx, ctx.db, image_id, "modify_image")
    async with ctx.db.transaction() as tx:
        image = await _lock(tx, image_id)
        if tag not in image.tags:
            raise NotFound(f"The tag {tag[:255]} is not on image {image_id}.")
        await model.change(tx, image, image._replace(tags=[t for t in image.tags if t != tag]), ctx.now)
    return Response()
