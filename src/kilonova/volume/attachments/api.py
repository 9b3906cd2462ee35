"""Routes of attachments."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Unavailable
from kilonova.http.parameter_types import ANYTHING
from kilonova.ids import new_id
from kilonova.store import Transaction
from kilonova.volume.api import api
from kilonova.volume.attachments import connection, model, schemas, usage, views
from kilonova.volume.attachments.model import Attachment
from kilonova.volume.attachments.search import SEARCH
from kilonova.volume.attachments.servers import check_server
from kilonova.volume.attachments.views import CONNECTION_INFO
from kilonova.volume.exports import attachments as exports
from kilonova.volume.volumes import model as volumes
from kilonova.volume.volumes.model import Volume

__all__ = ["views"]

ATTACHMENT = "/attachments/{attachment_id}"
SHOWS = ("attachment", "attachment detail", False)
ACTION = ATTACHMENT + "/action"
CREATE, UPDATE = "volume:attachment_create", "volume:attachment_update"
COMPLETE, DELETE = "volume:attachment_complete", "volume:attachment_delete"
SHARED_BOOTABLE = "volume:multiattach_bootable_volume"


@api.route("GET", "/attachments", policy=model.SHOW, query=schemas.LIST, shows=("attachments", "attachment", True))
async def index(ctx: Context) -> Response:
    """List attachments."""
    return await SEARCH.response(ctx, "/attachments", "attachment")


@api.route(
    "GET",
    "/attachments/detail",
    policy=model.SHOW,
    checks=[CONNECTION_INFO],
    query=schemas.LIST,
    shows=("attachments", "attachment detail", True),
)
async def detail(ctx: Context) -> Response:
    """List attachments in detail."""
    return await SEARCH.response(ctx, "/attachments/detail", "attachment detail")


@api.route(
    "POST",
    "/attachments",
    checks=[CREATE, SHARED_BOOTABLE, CONNECTION_INFO],
    body=schemas.CREATE,
    query={},
    shows=SHOWS,
)
async def create(ctx: Context) -> Response:
    """Reserve a volume for a server; with a connector, connect it to the server's host."""
    body = ctx.body["attachment"]
    connector, server_id = body.get("connector") or {}, body.get("instance_uuid")
    await volumes.find(ctx, ctx.db, body["volume_uuid"], rule=CREATE)
    await check_server(ctx, server_id)
    address = await exports.address_for(ctx, connector)
    async with ctx.db.transaction() as tx:
        volume = await volumes.find(ctx, tx, body["volume_uuid"], rule=CREATE, lock=True)
        existing = await model.of_volume(tx, volume.id)
        connection.check_free(volume, existing, server_id)
        if existing and volume.multiattach and volume.bootable:
            ctx.authorize(SHARED_BOOTABLE, volumes.target(volume))
        mode = connection.choose_mode(volume, body.get("mode") or connector.get("mode"))
        attachment = _new(ctx, volume, server_id, mode)
        await model.create(tx, attachment)
        if connector:
            attachment = await _connect(ctx, tx, volume, attachment, connector, address)
        await volumes.derive_status(tx, volume.id)
    await _export(ctx, attachment)
    return Response({"attachment": ctx.render("attachment detail", attachment)})


@api.route("GET", ATTACHMENT, checks=[model.SHOW, CONNECTION_INFO], query={}, shows=SHOWS)
async def show(ctx: Context, attachment_id: str) -> Response:
    """Show an attachment."""
    attachment = await model.find(ctx, ctx.db, attachment_id, rule=model.SHOW)
    return Response({"attachment": ctx.render("attachment detail", attachment)})


@api.route("PUT", ATTACHMENT, checks=[UPDATE, CONNECTION_INFO], body=schemas.UPDATE, query={}, shows=SHOWS)
async def update(ctx: Context, attachment_id: str) -> Response:
    """Connect a reserved volume to a host."""
    connector = ctx.body["attachment"]["connector"]
    address = await exports.address_for(ctx, connector)
    async with ctx.db.transaction() as tx:
        volume, attachment = await _locked(ctx, tx, attachment_id, UPDATE)
        if attachment.status == model.ATTACHED and attachment.connector is not None:
            raise BadRequest(f"Invalid volume attachment: attachment {attachment_id} is in use; create another one.")
        attachment = await _connect(ctx, tx, volume, attachment, connector, address)
        await volumes.derive_status(tx, volume.id)
    await _export(ctx, attachment)
    return Response({"attachment": ctx.render("attachment detail", attachment)})


@api.action("os-complete", at=ACTION, checks=[COMPLETE], body=ANYTHING, status=204)
async def complete(ctx: Context, attachment_id: str) -> None:
    """Complete an attachment: the volume is in use, even if no host is connected at the moment."""
    async with ctx.db.transaction() as tx:
        volume, attachment = await _locked(ctx, tx, attachment_id, COMPLETE)
        if attachment.status != model.ATTACHED:
            await model.complete(tx, attachment_id)
            await volumes.derive_status(tx, volume.id)


@api.route("DELETE", ATTACHMENT, checks=[DELETE], query={})
async def delete(ctx: Context, attachment_id: str) -> Response:
    """Delete an attachment. The response has the volume's other attachments."""
    attachment = await model.find(ctx, ctx.db, attachment_id, rule=DELETE)
    await usage.check_unused(ctx, attachment)
    await exports.revoke(ctx, [attachment])
    async with ctx.db.transaction() as tx:
        volume, _ = await _locked(ctx, tx, attachment_id, DELETE)
        await model.delete(tx, attachment_id)
        await volumes.derive_status(tx, volume.id)
        left = await model.of_volume(tx, volume.id)
    return Response({"attachments": [ctx.render("attachment", attachment) for attachment in left]})


def _new(ctx: Context, volume: Volume, server_id: str | None, mode: str) -> Attachment:
    return Attachment(
        id=new_id(),
        volume_id=volume.id,
        # The volume's project, also if a service creates the attachment.
        project_id=volume.project_id,
        server_id=server_id,
        status=model.RESERVED,
        mode=mode,
        created_at=ctx.now,
        updated_at=ctx.now,
    )


async def _connect(
    ctx: Context,
    tx: Transaction,
    volume: Volume,
    attachment: Attachment,
    connector: dict[str, object],
    address: dict[str, object] | None,
) -> Attachment:
    mode = connection.choose_mode(volume, str(connector.get("mode") or attachment.mode))
    nbd = exports.connection_data(address, attachment.id) if address else None
    info = connection.connection_info(volume, attachment.id, mode, ctx.services.config, nbd)
    return await model.connect(tx, attachment, connector, mode, info)


async def _export(ctx: Context, attachment: Attachment) -> None:
    """Create the export. If that fails, the attachment is reserved again."""
    if not exports.is_export(attachment.connection):
        return
    try:
        await exports.sync(ctx, attachment.volume_id)
    except Unavailable:
        async with ctx.db.transaction() as tx:
            await model.disconnect(tx, attachment.id)
            await volumes.derive_status(tx, attachment.volume_id)
        raise


async def _locked(ctx: Context, tx: Transaction, attachment_id: str, rule: str) -> tuple[Volume, Attachment]:
    """Lock the volume, then read the attachment."""
    found = await model.find(ctx, tx, attachment_id, rule=rule)
    volume = await volumes.get(tx, found.volume_id, lock=True)
    attachment = await model.get(tx, attachment_id)
    if volume is None or attachment is None:
        raise model.not_found(attachment_id)
    return volume, attachment
