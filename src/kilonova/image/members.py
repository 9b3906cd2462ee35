"""Routes of image members: the projects that an image is shared with."""

from __future__ import annotations

from typing import ClassVar

from kilonova import clock
from kilonova.http import Context, Response
from kilonova.http.errors import Conflict, Forbidden, NotFound
from kilonova.image.api import api
from kilonova.image.authorization import image_not_found, load, policy_target, sees_all
from kilonova.image.images.model import Image
from kilonova.image.images.patch import limit_exceeded
from kilonova.image.images.schemas import MEMBER_CREATE, MEMBER_UPDATE
from kilonova.store.records import Record

MAX_MEMBERS = 128
_SELECT = "SELECT * FROM image_members WHERE image_id = $1 AND member_id = $2"


class Member(Record, frozen=True):
    table: ClassVar[str] = "image_members"

    image_id: str
    member_id: str
    status: str
    created_at: float
    updated_at: float


def view(member: Member) -> dict[str, object]:
    return {
        "image_id": member.image_id,
        "member_id": member.member_id,
        "status": member.status,
        "created_at": clock.iso(member.created_at),
        "updated_at": clock.iso(member.updated_at),
        "schema": "/v2/schemas/member",
    }


async def _load_shared_image(ctx: Context, image_id: str) -> Image:
    image = await load(ctx, ctx.db, image_id)
    if image.visibility != "shared":
        raise Forbidden("Only shared images have members.")
    return image


def _is_owner(ctx: Context, image: Image) -> bool:
    return image.owner == ctx.token.project_id or sees_all(ctx)


@api.route("GET", "/v2/images/{image_id}/members", checks=["get_members"])
async def index(ctx: Context, image_id: str) -> Response:
    """List the projects an image is shared with; a member sees only itself."""
    image = await _load_shared_image(ctx, image_id)
    ctx.authorize("get_members", {**policy_target(image), "member_id": ctx.token.project_id})
    sql, args = "SELECT * FROM image_members WHERE image_id = $1", [image_id]
    if not _is_owner(ctx, image):
        sql, args = _SELECT, [image_id, ctx.token.project_id or ""]
    found = await ctx.db.fetch(f"{sql} ORDER BY created_at, member_id", *args)
    return Response({"members": [view(Member.decode(row)) for row in found], "schema": "/v2/schemas/members"})


@api.route("GET", "/v2/images/{image_id}/members/{member_id}", checks=["get_member"])
async def show(ctx: Context, image_id: str, member_id: str) -> Response:
    """Show an image member."""
    image = await _load_shared_image(ctx, image_id)
    member = Member.decode_optional(await ctx.db.fetch_one(_SELECT, image_id, member_id))
    if member is None or not (_is_owner(ctx, image) or member_id == ctx.token.project_id):
        raise _not_found(image_id, member_id)
    ctx.authorize("get_member", {**policy_target(image), "member_id": member_id})
    return Response(view(member))


@api.route("POST", "/v2/images/{image_id}/members", checks=["add_member"], body=MEMBER_CREATE)
async def create(ctx: Context, image_id: str) -> Response:
    """Share an image with a project."""
    image = await _load_shared_image(ctx, image_id)
    ctx.authorize("add_member", policy_target(image))
    member = Member(image_id, ctx.body["member"], "pending", ctx.now, ctx.now)
    async with ctx.db.transaction() as tx:
        if await tx.fetch_one("SELECT id FROM images WHERE id = $1 FOR UPDATE", image_id) is None:
            raise image_not_found(image_id)
        count = await tx.fetch_value("SELECT count(*) FROM image_members WHERE image_id = $1", image_id)
        if count >= MAX_MEMBERS:
            raise limit_exceeded("members", MAX_MEMBERS)
        created = await tx.execute(
            "INSERT INTO image_members (image_id, member_id, status, created_at, updated_at) "
            "VALUES ($1, $2, $3, $4, $5) ON CONFLICT (image_id, member_id) DO NOTHING",
            *member.encode().values(),
        )
    if not created:
        raise Conflict(f"Project {member.member_id} is already associated with image {image_id}.")
    return Response(view(member))


@api.route("PUT", "/v2/images/{image_id}/members/{member_id}", checks=["modify_member"], body=MEMBER_UPDATE)
async def update(ctx: Context, image_id: str, member_id: str) -> Response:
    """Accept or reject an image that is shared with the caller's project."""
    image = await _load_shared_image(ctx, image_id)
    if not (_is_owner(ctx, image) or member_id == ctx.token.project_id):
        raise _not_found(image_id, member_id)
    ctx.authorize("modify_member", {**policy_target(image), "member_id": member_id})
    async with ctx.db.transaction() as tx:
        await tx.execute(
            "UPDATE image_members SET status = $1, updated_at = $2 WHERE image_id = $3 AND member_id = $4",
            ctx.body["status"],
            ctx.now,
            image_id,
            member_id,
        )
        member = Member.decode_optional(await tx.fetch_one(_SELECT, image_id, member_id))
    if member is None:
        raise _not_found(image_id, member_id)
    return Response(view(member))


@api.route("DELETE", "/v2/images/{image_id}/members/{member_id}", checks=["delete_member"], status=204)
async def delete(ctx: Context, image_id: str, member_id: str) -> Response:
    """Stop sharing an image with a project."""
    image = await _load_shared_image(ctx, image_id)
    ctx.authorize("delete_member", policy_target(image))
    async with ctx.db.transaction() as tx:
        deleted = await tx.execute(
            "DELETE FROM image_members WHERE image_id = $1 AND member_id = $2", image_id, member_id
        )
    if not deleted:
        raise _not_found(image_id, member_id)
    return Response()


def _not_found(image_id: str, member_id: str) -> NotFound:
    return NotFound(f"{member_id[:80]} not found in the member list of the image {image_id}.")
