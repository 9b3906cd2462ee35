"""Routes of images and their tags."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, Forbidden, NotFound, TooLarge, UnsupportedMediaType
from kilonova.http.json_body import parse_json
from kilonova.http.loop_yielder import collect
from kilonova.ids import new_id
from kilonova.image.api import BODY_LIMIT, api
from kilonova.image.authorization import image_not_found, is_admin, load, policy_target
from kilonova.image.files import ImageFiles
from kilonova.image.images import listing, model, patch, quotas
from kilonova.image.images.model import Image, ImageDetails
from kilonova.image.images.schemas import CREATE, MAX_PROPERTIES, MAX_TAGS, WRITABLE_ATTRIBUTES
from kilonova.image.images.views import view
from kilonova.store import Transaction

# By the visibility that they allow.
VISIBILITY_RULES = {"public": "publicize_image", "community": "communitize_image"}
CHOOSE_ID = "kilonova:images:choose_id"


@api.route("GET", "/v2/images", policy="get_images", query=listing.LIST_QUERY)
async def index(ctx: Context) -> Response:
    """List the images that the caller may see."""
    found = await listing.find_images(ctx)
    shown = await collect(view(image) for image in await model.load_details(ctx.db, found))
    return Response({"images": shown, **listing.links(ctx, found), "schema": "/v2/schemas/images"})


@api.route("GET", "/v2/images/{image_id}", checks=["get_image"])
async def show(ctx: Context, image_id: str) -> Response:
    """Show an image."""
    image = await load(ctx, ctx.db, image_id)
    return Response(view((await model.load_details(ctx.db, [image]))[0]))


@api.route("GET", "/v2/images/{image_id}/tasks", checks=["get_image"])
async def show_tasks(ctx: Context, image_id: str) -> Response:
    """List the tasks of an image: there are none."""
    await load(ctx, ctx.db, image_id)
    return Response({"tasks": []})


@api.route("POST", "/v2/images", checks=["add_image", CHOOSE_ID, *VISIBILITY_RULES.values()], body=CREATE, status=201)
async def create(ctx: Context) -> Response:
    """Create an image; its data is uploaded afterwards."""
    image = _new_image(ctx)
    ctx.authorize("add_image", policy_target(image))
    _authorize_visibility(ctx, image)
    new = ImageDetails(image, _properties(ctx), sorted(set(ctx.body.get("tags", []))))
    try:
        async with ctx.db.transaction() as tx:
            await quotas.check_count(tx, image.owner, ctx.services.config.image_quota)
            await model.create(tx, new)
    except model.IdTaken as error:
        raise Conflict(str(error)) from error
    return Response(view(new), headers={"Location": f"{ctx.base_url()}/v2/images/{image.id}"})


def _new_image(ctx: Context) -> Image:
    body = ctx.body
    return Image(
        id=_id(ctx),
        created_at=ctx.now,
        updated_at=ctx.now,
        name=body.get("name"),
        owner=_owner(ctx),
        visibility=body.get("visibility", "shared"),
        disk_format=body.get("disk_format"),
        container_format=body.get("container_format"),
        min_disk=body.get("min_disk", 0),
        min_ram=body.get("min_ram", 0),
        protected=body.get("protected", False),
        hidden=body.get("os_hidden", False),
    )


def _id(ctx: Context) -> str:
    """The requested id in lower case, or a new one.

    Servers and hosts of all projects know images by id, so administrators of one project may not choose it either.
    """
    requested: str | None = ctx.body.get("id")
    if requested is None:
        return new_id()
    if not ctx.may(CHOOSE_ID):
        ctx.audit["reason"] = f"policy {CHOOSE_ID}"
        raise Forbidden(
            "Invalid attribute id: only services and administrators of the cloud may choose the id of an image."
        )
    return requested.lower()


def _owner(ctx: Context) -> str | None:
    owner: str | None = ctx.body.get("owner", ctx.token.project_id)
    if owner != ctx.token.project_id and not is_admin(ctx):
        raise Forbidden("You are not permitted to create images owned by another project.")
    return owner


def _authorize_visibility(ctx: Context, image: Image) -> None:
    rule = VISIBILITY_RULES.get(image.visibility)
    if rule is not None:
        ctx.authorize(rule, policy_target(image))


def _properties(ctx: Context) -> dict[str, str]:
    given = {name: value for name, value in ctx.body.items() if name not in WRITABLE_ATTRIBUTES and name != "id"}
    for name, value in given.items():
        patch.check_name(name)
        if not 0 < len(name) <= 255:
            raise BadRequest("The name of a property must have 1 to 255 characters.")
        patch.check_property(name, value)
    if len(given) > MAX_PROPERTIES:
        raise patch.limit_exceeded("properties", MAX_PROPERTIES)
    return {name: value for name, value in given.items() if value is not None}


@api.route("PATCH", "/v2/images/{image_id}", checks=["modify_image", *VISIBILITY_RULES.values()], stream=True)
async def update(ctx: Context, image_id: str) -> Response:
    """Change an image by a JSON patch."""
    await load(ctx, ctx.db, image_id, "modify_image")
    operations = patch.parse(parse_json(await _read_body(ctx)), _patch_format(ctx))
    async with ctx.db.transaction() as tx:
        before = await _lock(tx, image_id)
        after = patch.apply(before, operations)
        if after.image.visibility != before.image.visibility:
            _authorize_visibility(ctx, after.image)
        if after.image.owner != before.image.owner and not is_admin(ctx):
            raise Forbidden("You are not permitted to change the owner of an image.")
        changed = await model.change(tx, before, after, ctx.now) if after != before else before
    return Response(view(changed))


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


async def _lock(tx: Transaction, image_id: str) -> ImageDetails:
    found = await model.lock(tx, image_id)
    if found is None:
        raise image_not_found(image_id)
    return found


@api.route("DELETE", "/v2/images/{image_id}", checks=["delete_image"], status=204)
async def delete(ctx: Context, image_id: str) -> Response:
    """Delete an image with its data."""
    await load(ctx, ctx.db, image_id, "delete_image")
    async with ctx.db.transaction() as tx:
        image = (await _lock(tx, image_id)).image
        if image.protected:
            raise Forbidden(f"Image {image_id} is protected and cannot be deleted.")
        await model.remove(tx, image_id, ctx.now)
    _delete_data(ctx, image)
    return Response()


def _delete_data(ctx: Context, image: Image) -> None:
    """Delete the data of a deleted image. A running upload notices the deletion and removes its own file."""
    if image.data_id is None:
        return
    files = ImageFiles.of(ctx.services.config)
    if image.status != "saving" or not files.is_uploading(image.id, image.data_id):
        files.remove(image.id, image.data_id)


@api.route("PUT", "/v2/images/{image_id}/tags/{tag}", checks=["modify_image"], status=204)
async def add_tag(ctx: Context, image_id: str, tag: str) -> Response:
    """Add a tag to an image."""
    await load(ctx, ctx.db, image_id, "modify_image")
    if len(tag) > 255:
        raise BadRequest("A tag must have at most 255 characters.")
    async with ctx.db.transaction() as tx:
        found = await _lock(tx, image_id)
        if tag not in found.tags and len(found.tags) >= MAX_TAGS:
            raise patch.limit_exceeded("tags", MAX_TAGS)
        await model.change(tx, found, found._replace(tags=sorted({*found.tags, tag})), ctx.now)
    return Response()


@api.route("DELETE", "/v2/images/{image_id}/tags/{tag}", checks=["modify_image"], status=204)
async def remove_tag(ctx: Context, image_id: str, tag: str) -> Response:
    """Remove a tag from an image."""
    await load(ctx, ctx.db, image_id, "modify_image")
    async with ctx.db.transaction() as tx:
        found = await _lock(tx, image_id)
        if tag not in found.tags:
            raise NotFound(f"The tag {tag[:255]} is not on image {image_id}.")
        await model.change(tx, found, found._replace(tags=[t for t in found.tags if t != tag]), ctx.now)
    return Response()
