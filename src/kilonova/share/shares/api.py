"""Routes of shares."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, Forbidden, NotFound
from kilonova.http.parameter_types import is_true
from kilonova.ids import new_id
from kilonova.operations import begin
from kilonova.share import types
from kilonova.share.api import api, share_action
from kilonova.share.locks import model as locks
from kilonova.share.quotas import model as quotas
from kilonova.share.shares import listing, metadata, model, schemas, views
from kilonova.share.shares.model import Share
from kilonova.store import Transaction
from kilonova.store.insert import insert_row

__all__ = ["metadata", "views"]

RULE = "share:"
SHARE = "/shares/{share_id}"
FORCED = "share:force_delete"
_TEXTS = ("name", "description")


@api.route("GET", "/shares", policy=RULE + "get_all", query=schemas.LIST, shows=("shares", "share brief", True))
async def index(ctx: Context) -> Response:
    """List shares."""
    return await listing.page(ctx, "share brief")


@api.route("GET", "/shares/detail", policy=RULE + "get_all", query=schemas.LIST, shows=("shares", "share", True))
async def detail(ctx: Context) -> Response:
    """List shares with their details."""
    return await listing.page(ctx, "share")


@api.route("GET", SHARE, checks=[model.SHOW], shows=("share", "share", False))
async def show(ctx: Context, share_id: str) -> Response:
    """Show a share."""
    return Response({"share": ctx.render("share", await model.find(ctx, ctx.db, share_id))})


@api.route("POST", "/shares", policy=RULE + "create", body=schemas.CREATE, status=200, shows=("share", "share", False))
async def create(ctx: Context) -> Response:
    """Create a share."""
    from kilonova.share.operations.create_share import CreateShare, ShareParams

    share = await _new(ctx)
    async with ctx.db.transaction() as tx:
        await quotas.check(
            tx, share.project_id, config=ctx.services.config, shares=1, gigabytes=share.size, size=share.size
        )
        await insert_row(tx, Share.table, share.encode())
        await begin(
            tx,
            CreateShare,
            params=ShareParams(share.id),
            project_id=share.project_id,
            user_id=ctx.token.user_id,
            request_id=ctx.request_id,
        )
    return Response({"share": ctx.render("share", share)})


@api.route("PUT", SHARE, checks=[RULE + "update"], body=schemas.UPDATE, shows=("share", "share", False))
async def update(ctx: Context, share_id: str) -> Response:
    """Change the name or the description of a share."""
    body = ctx.body["share"]
    _check_private(body)
    # `name` and `description` take precedence over the older `display_name` and `display_description`.
    values = {key: body[f"display_{key}"] for key in _TEXTS if f"display_{key}" in body}
    values |= {key: body[key] for key in _TEXTS if key in body}
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, share_id, rule=RULE + "update", lock=True)
        await model.change(tx, share_id, values)
        share = await model.find(ctx, tx, share_id, rule=RULE + "update")
    return Response({"share": ctx.render("share", share)})


@api.route("DELETE", SHARE, checks=[RULE + "delete"], status=202)
async def delete(ctx: Context, share_id: str) -> None:
    """Delete a share. A locked share is refused: servers lock the shares that they use."""
    async with ctx.db.transaction() as tx:
        share = await model.find(ctx, tx, share_id, rule=RULE + "delete", lock=True)
        if share.status not in model.DELETABLE:
            raise Conflict(
                f"Share {share_id} must be in status {' or '.join(model.DELETABLE)} to be deleted, but it is"
                f" {share.status}."
            )
        await _delete(ctx, tx, share)


@share_action("force_delete", checks=[FORCED], body={"type": ["object", "null"]}, status=202)
async def force_delete(ctx: Context, share_id: str) -> None:
    """Delete a share in any status. Locks still apply."""
    async with ctx.db.transaction() as tx:
        await _delete(ctx, tx, await model.find(ctx, tx, share_id, rule=FORCED, lock=True))


@share_action("reset_status", checks=[RULE + "reset_status"], body=schemas.RESET, status=202)
async def reset_status(ctx: Context, share_id: str) -> None:
    """Set the status of a share."""
    status = ctx.body["reset_status"]["status"]
    async with ctx.db.transaction() as tx:
        share = await model.find(ctx, tx, share_id, rule=RULE + "reset_status", lock=True)
        if status == model.AVAILABLE and share.export_path is None:
            raise BadRequest(f"Invalid share: Share {share_id} has no directory, so it cannot become available.")
        await model.change(tx, share_id, {"status": status})


@share_action("reset_task_state", checks=[RULE + "reset_task_state"], body=schemas.RESET_TASK_STATE, status=202)
async def reset_task_state(ctx: Context, share_id: str) -> None:
    """Clear the task state of a share. Shares do not migrate, so none has another one."""
    await model.find(ctx, ctx.db, share_id, rule=RULE + "reset_task_state")


@share_action("extend", checks=[RULE + "extend", RULE + "force_extend"], body=schemas.EXTEND, status=202)
async def extend(ctx: Context, share_id: str) -> None:
    """Extend a share."""
    body = ctx.body["extend"]
    rule = RULE + ("force_extend" if is_true(body.get("force")) else "extend")
    async with ctx.db.transaction() as tx:
        share = await model.find(ctx, tx, share_id, rule=rule, lock=True)
        model.check_available(share, "be extended")
        size = int(body["new_size"])
        if size <= share.size:
            raise BadRequest(
                f"New size for extend must be greater than current size. (current: {share.size}, extended: {size})."
            )
        config = ctx.services.config
        await quotas.check(tx, share.project_id, config=config, gigabytes=size - share.size, size=size)
        await model.change(tx, share_id, {"size": size})


@share_action("shrink", checks=[RULE + "shrink"], body=schemas.SHRINK, status=202)
async def shrink(ctx: Context, share_id: str) -> None:
    """Shrink a share. Sizes are not enforced, so no content is lost."""
    async with ctx.db.transaction() as tx:
        share = await model.find(ctx, tx, share_id, rule=RULE + "shrink", lock=True)
        model.check_available(share, "be shrunk")
        size = int(ctx.body["shrink"]["new_size"])
        if size >= share.size:
            raise BadRequest(
                f"New size for shrink must be less than current size. (current: {share.size}, new: {size})."
            )
        await model.change(tx, share_id, {"size": size})


async def _delete(ctx: Context, tx: Transaction, share: Share) -> None:
    from kilonova.share.operations.create_share import ShareParams
    from kilonova.share.operations.delete_share import DeleteShare

    await locks.check_unlocked(tx, share.id, locks.DELETE)
    await model.change(tx, share.id, {"status": model.DELETING})
    await begin(
        tx,
        DeleteShare,
        params=ShareParams(share.id),
        project_id=share.project_id,
        user_id=ctx.token.user_id,
        request_id=ctx.request_id,
    )


async def _new(ctx: Context) -> Share:
    body = ctx.body["share"]
    if ctx.token.project_id is None:
        raise Forbidden("The token must be scoped to a project to create a share.")
    if body["share_proto"].upper() != model.PROTOCOL:
        raise BadRequest(
            f"Invalid share protocol provided: {body['share_proto'][:80]}. It is either disabled or unsupported."
            f" Available protocols: ['{model.PROTOCOL}']."
        )
    _check_private(body)
    for key in ("snapshot_id", "share_network_id", "share_group_id", "scheduler_hints"):
        if body.get(key):
            raise BadRequest(f"{key}: this service has no snapshots, share networks, share groups and scheduler hints.")
    requested = body.get("share_type") or body.get("volume_type")
    if requested not in (None, "", types.DEFAULT_ID, types.DEFAULT_NAME):
        raise NotFound(f"Share type {requested[:80]} could not be found.")
    return Share(
        id=new_id(),
        project_id=ctx.token.project_id,
        user_id=ctx.token.user_id,
        name=body.get("name", body.get("display_name")),
        description=body.get("description", body.get("display_description")),
        size=int(body["size"]),
        status=model.CREATING,
        zone=await _zone(ctx, body.get("availability_zone")),
        metadata=body.get("metadata") or {},
        created_at=ctx.now,
        updated_at=ctx.now,
    )


async def _zone(ctx: Context, requested: str | None) -> str:
    if not requested:
        return ctx.services.config.scheduler.default_zone
    if requested not in await ctx.services.compute_status.availability_zones():
        raise NotFound(f"Availability zone {requested[:80]} could not be found.")
    return requested


def _check_private(body: dict[str, object]) -> None:
    if is_true(body.get("is_public")):
        raise BadRequest("is_public: this service has no public shares.")
