"""Routes of attachments."""

from __future__ import annotations

from typing import Any

from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Unavailable
from kilonova.http.pagination import next_link
from kilonova.http.pieces import ANYTHING
from kilonova.ids import new_id
from kilonova.store import Row, Transaction
from kilonova.volume.api import api
from kilonova.volume.attachments import connecting, guarding, listing, model, schemas, views
from kilonova.volume.exports import attaching as exports
from kilonova.volume.volumes import model as volumes

__all__ = ["views"]

ATTACHMENT = "/attachments/{attachment_id}"
ACTION = ATTACHMENT + "/action"
CREATE, UPDATE = "volume:attachment_create", "volume:attachment_update"
COMPLETE, DELETE = "volume:attachment_complete", "volume:attachment_delete"
SHARED_BOOTABLE = "volume:multiattach_bootable_volume"


@api.route("GET", "/attachments", policy=model.SHOW, query=schemas.LIST, shows=("attachments", "attachment", True))
async def index(ctx: Context) -> Answer:
    """List attachments."""
    return await _page(ctx, "/attachments", "attachment")


@api.route(
    "GET",
    "/attachments/detail",
    policy=model.SHOW,
    query=schemas.LIST,
    shows=("attachments", "attachment detail", True),
)
async def detail(ctx: Context) -> Answer:
    """List attachments in detail."""
    return await _page(ctx, "/attachments/detail", "attachment detail")


@api.route(
    "POST",
    "/attachments",
    checks=[CREATE, SHARED_BOOTABLE],
    body=schemas.CREATE,
    query={},
    shows=("attachment", "attachment detail", False),
)
async def create(ctx: Context) -> Answer:
    """Reserve a volume for a server; with a connector, connect it to the server's host."""
    asked = ctx.body["attachment"]
    connector, server_id = asked.get("connector") or {}, asked.get("instance_uuid")
    address = await exports.address_for(ctx, connector)
    async with ctx.db.transaction() as tx:
        volume = await volumes.find(ctx, tx, asked["volume_uuid"], rule=CREATE, lock=True)
        there = await model.of_volume(tx, volume["id"])
        connecting.check_free(volume, there, server_id)
        if there and volume["multiattach"] and volume["bootable"]:
            ctx.authorize(SHARED_BOOTABLE, volumes.target(volume))
        mode = connecting.mode_of(volume, asked.get("mode") or connector.get("mode"))
        row = await model.create(tx, _new(ctx, volume, server_id, mode))
        if connector:
            row = await _connect(ctx, tx, volume, row, connector, address)
        await volumes.derive_status(tx, volume["id"])
    await _export(ctx, row)
    return Answer({"attachment": ctx.render("attachment detail", row)})


@api.route("GET", ATTACHMENT, checks=[model.SHOW], query={}, shows=("attachment", "attachment detail", False))
async def show(ctx: Context, attachment_id: str) -> Answer:
    """Show an attachment."""
    row = await model.find(ctx, ctx.db, attachment_id, rule=model.SHOW)
    return Answer({"attachment": ctx.render("attachment detail", row)})


@api.route(
    "PUT",
    ATTACHMENT,
    checks=[UPDATE],
    body=schemas.UPDATE,
    query={},
    shows=("attachment", "attachment detail", False),
)
async def update(ctx: Context, attachment_id: str) -> Answer:
    """Connect a reserved volume to a host."""
    connector = ctx.body["attachment"]["connector"]
    address = await exports.address_for(ctx, connector)
    async with ctx.db.transaction() as tx:
        volume, row = await _locked(ctx, tx, attachment_id, UPDATE)
        if row["status"] == model.ATTACHED and row["connector"] is not None:
            raise BadRequest(f"Invalid volume attachment: attachment {attachment_id} is in use; make another one.")
        row = await _connect(ctx, tx, volume, row, connector, address)
        await volumes.derive_status(tx, volume["id"])
    await _export(ctx, row)
    return Answer({"attachment": ctx.render("attachment detail", row)})


@api.action("os-complete", at=ACTION, checks=[COMPLETE], body=ANYTHING, status=204)
async def complete(ctx: Context, attachment_id: str) -> None:
    """Say that the server has the volume, which is in use from now on: also one that is on no host for the moment."""
    async with ctx.db.transaction() as tx:
        volume, row = await _locked(ctx, tx, attachment_id, COMPLETE)
        if row["status"] != model.ATTACHED:
            await model.complete(tx, attachment_id)
            await volumes.derive_status(tx, volume["id"])


@api.route("DELETE", ATTACHMENT, checks=[DELETE], query={})
async def delete(ctx: Context, attachment_id: str) -> Answer:
    """Give a volume back. The answer has the volume's other attachments."""
    row = await model.find(ctx, ctx.db, attachment_id, rule=DELETE)
    await guarding.check_unused(ctx, row)
    await exports.cut(ctx, [row])
    async with ctx.db.transaction() as tx:
        volume, _ = await _locked(ctx, tx, attachment_id, DELETE)
        await model.delete(tx, attachment_id)
        await volumes.derive_status(tx, volume["id"])
        left = await model.of_volume(tx, volume["id"])
    return Answer({"attachments": [ctx.render("attachment", row) for row in left]})


async def _page(ctx: Context, path: str, view: str) -> Answer:
    rows, full = await listing.attachments(ctx)
    shown: dict[str, Any] = {"attachments": [ctx.render(view, row) for row in rows]}
    if full:
        shown["attachments_links"] = next_link(ctx, path, rows[-1]["id"], full)
    return Answer(shown)


def _new(ctx: Context, volume: Row, server_id: str | None, mode: str) -> Row:
    return {
        "id": new_id(),
        "volume_id": volume["id"],
        # Whoever asks for it: to its users it belongs with the volume.
        "project_id": volume["project_id"],
        "server_id": server_id,
        "status": model.RESERVED,
        "mode": mode,
        "created_at": ctx.now,
        "updated_at": ctx.now,
    }


async def _connect(
    ctx: Context, tx: Transaction, volume: Row, row: Row, connector: dict[str, Any], address: dict[str, Any] | None
) -> Row:
    mode = connecting.mode_of(volume, connector.get("mode") or row["mode"])
    way = exports.way(address, row["id"]) if address else None
    connection = connecting.connection_of(volume, row["id"], mode, ctx.services.config, way)
    return await model.connect(tx, row, connector, mode, connection)


async def _export(ctx: Context, row: Row) -> None:
    """An attachment whose way leads nowhere is only reserved again."""
    if not exports.is_export(row):
        return
    try:
        await exports.bring(ctx, row["volume_id"])
    except Unavailable:
        async with ctx.db.transaction() as tx:
            await model.disconnect(tx, row["id"])
            await volumes.derive_status(tx, row["volume_id"])
        raise


async def _locked(ctx: Context, tx: Transaction, attachment_id: str, rule: str) -> tuple[Row, Row]:
    """The volume, locked, and the attachment as it is then."""
    found = await model.find(ctx, tx, attachment_id, rule=rule)
    volume = await volumes.get(tx, found["volume_id"], lock=True)
    row = await model.get(tx, attachment_id)
    if volume is None or row is None:
        raise model.missing(attachment_id)
    return volume, row
