"""Volume actions for attaching: the API before attachments, and actions that compute still uses."""

from __future__ import annotations

from collections.abc import Mapping

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.parameter_types import ANYTHING
from kilonova.ids import new_id
from kilonova.store import Transaction
from kilonova.volume.api import volume_action
from kilonova.volume.attachments import connection, usage
from kilonova.volume.attachments import model as attachments
from kilonova.volume.attachments.model import Attachment
from kilonova.volume.attachments.servers import check_server
from kilonova.volume.exports import attachments as exports
from kilonova.volume.volumes import action_schemas as schemas
from kilonova.volume.volumes import model, states
from kilonova.volume.volumes.model import Volume

RULE = "volume_extension:volume_actions:"
FORCE = "volume_extension:volume_admin_actions:force_detach"


@volume_action("os-reserve", checks=[RULE + "reserve"], body=ANYTHING, status=202)
async def reserve(ctx: Context, volume_id: str) -> None:
    """Reserve a volume."""
    await _set_status(ctx, volume_id, "os-reserve", "reserve")


@volume_action("os-unreserve", checks=[RULE + "unreserve"], body=ANYTHING, status=202)
async def unreserve(ctx: Context, volume_id: str) -> None:
    """Undo the reservation of a volume."""
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "unreserve", lock=True)
        states.check(volume, "os-unreserve")
        await model.derive_status(tx, volume_id)


@volume_action("os-begin_detaching", checks=[RULE + "begin_detaching"], body=ANYTHING, status=202)
async def begin_detaching(ctx: Context, volume_id: str) -> None:
    """Set a volume to detaching."""
    await _set_status(ctx, volume_id, "os-begin_detaching", "begin_detaching")


@volume_action("os-roll_detaching", checks=[RULE + "roll_detaching"], body=ANYTHING, status=202)
async def roll_detaching(ctx: Context, volume_id: str) -> None:
    """Set a detaching volume back to in-use."""
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "roll_detaching", lock=True)
        if volume.status == states.DETACHING:
            await model.derive_status(tx, volume_id)


@volume_action("os-attach", checks=[RULE + "attach"], body=schemas.ATTACH, status=202)
async def attach(ctx: Context, volume_id: str) -> None:
    """Attach a volume to a server or a host."""
    body = ctx.body["os-attach"]
    server_id, host = body.get("instance_uuid"), body.get("host_name")
    if bool(server_id) == bool(host):
        raise BadRequest("Invalid request: either instance_uuid or host_name must be specified, and not both.")
    await model.find(ctx, ctx.db, volume_id, rule=RULE + "attach")
    await check_server(ctx, server_id)
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "attach", lock=True)
        states.check(volume, "os-attach")
        existing = await attachments.of_volume(tx, volume_id)
        unclaimed = next((row for row in existing if _is_unclaimed(row)), None)
        connection.check_exclusive(volume, [row for row in existing if row is not unclaimed], server_id)
        if unclaimed is not None:
            await attachments.delete(tx, unclaimed.id)
        attachment = Attachment(
            id=unclaimed.id if unclaimed else new_id(),
            volume_id=volume_id,
            project_id=volume.project_id,
            server_id=server_id,
            status=attachments.ATTACHED,
            mode=connection.choose_mode(volume, body.get("mode")),
            host=host or (unclaimed.host if unclaimed else None),
            mountpoint=body["mountpoint"],
            connector=unclaimed.connector if unclaimed else None,
            connection=unclaimed.connection if unclaimed else None,
            created_at=ctx.now,
            updated_at=ctx.now,
            attached_at=ctx.now,
        )
        await attachments.create(tx, attachment)
        await model.derive_status(tx, volume_id)


@volume_action("os-detach", checks=[RULE + "detach"], body=schemas.DETACH, status=202)
async def detach(ctx: Context, volume_id: str) -> None:
    """Detach a volume from a server or a host."""
    body = ctx.body["os-detach"] or {}
    unused = await check_unused(ctx, volume_id, RULE + "detach", body.get("attachment_id"))
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "detach", lock=True)
        states.check(volume, "os-detach")
        await _detach(tx, volume, body.get("attachment_id"), unused)
    await exports.try_sync(ctx, volume_id)


@volume_action("os-force_detach", checks=[FORCE], body=schemas.FORCE_DETACH, status=202)
async def force_detach(ctx: Context, volume_id: str) -> None:
    """Detach a volume in any status."""
    body = ctx.body["os-force_detach"] or {}
    unused = await check_unused(ctx, volume_id, FORCE, body.get("attachment_id"))
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=FORCE, lock=True)
        await _detach(tx, volume, body.get("attachment_id"), unused)
        if volume.status not in states.BUSY:
            await model.set_status(tx, volume_id, await model.status_at_rest(tx, volume_id))
    await exports.try_sync(ctx, volume_id)


@volume_action("os-initialize_connection", checks=[RULE + "initialize_connection"], body=schemas.CONNECT, status=200)
async def initialize_connection(ctx: Context, volume_id: str) -> Response:
    """Connect a volume to a host, and show the connection info."""
    connector = ctx.body["os-initialize_connection"]["connector"]
    volume = await model.find(ctx, ctx.db, volume_id, rule=RULE + "initialize_connection")
    mode = connection.choose_mode(volume, connector.get("mode"))
    address = await exports.address_for(ctx, connector)
    if address is not None:
        info = await _export(ctx, volume_id, connector, mode, address)
    else:
        info = connection.connection_info(volume, "", mode, ctx.services.config)
    driver = info.pop("driver_volume_type")
    return Response({"connection_info": {"driver_volume_type": driver, "data": info}})


async def _export(
    ctx: Context, volume_id: str, connector: dict[str, object], mode: str, address: dict[str, object]
) -> dict[str, object]:
    """An export needs an attachment: the host's existing one, or a new one that os-attach completes."""
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "initialize_connection", lock=True)
        existing = await attachments.of_volume(tx, volume_id)
        exported = (row.connection for row in existing if _is_export(row) and _is_of_host(row, connector))
        info = next(exported, None)
        if info is None:
            ident = new_id()
            nbd = exports.connection_data(address, ident)
            info = connection.connection_info(volume, ident, mode, ctx.services.config, nbd)
            attachment = Attachment(
                id=ident,
                volume_id=volume_id,
                project_id=volume.project_id,
                status=attachments.ATTACHING,
                mode=mode,
                host=attachments.host_of(connector),
                connector=connector,
                connection=info,
                created_at=ctx.now,
                updated_at=ctx.now,
            )
            await attachments.create(tx, attachment)
            await model.derive_status(tx, volume_id)
    await exports.sync(ctx, volume_id)
    return dict(info)


def _is_export(attachment: Attachment) -> bool:
    return exports.is_export(attachment.connection)


def _is_of_host(attachment: Attachment, connector: Mapping[str, object] | None) -> bool:
    return connector is None or attachment.host == attachments.host_of(connector)


def _is_unclaimed(attachment: Attachment) -> bool:
    """Whether the attachment was created by os-initialize_connection, before os-attach named the server."""
    return attachment.server_id is None and attachment.status == attachments.ATTACHING and _is_export(attachment)


@volume_action("os-terminate_connection", checks=[RULE + "terminate_connection"], body=schemas.DISCONNECT, status=202)
async def terminate_connection(ctx: Context, volume_id: str) -> None:
    """Disconnect a volume from a host. Only exports need that."""
    connector = ctx.body["os-terminate_connection"].get("connector")
    unused = await check_unused(ctx, volume_id, RULE + "terminate_connection", None)
    existing = [row for row in await attachments.of_volume(ctx.db, volume_id) if row.id in unused]
    found = [row for row in existing if _is_export(row) and _is_of_host(row, connector)]
    await exports.revoke(ctx, found)
    if any(_is_unclaimed(row) for row in found):
        async with ctx.db.transaction() as tx:
            await model.find(ctx, tx, volume_id, rule=RULE + "terminate_connection", lock=True)
            for row in found:
                if _is_unclaimed(row):
                    await attachments.delete(tx, row.id)
            await model.derive_status(tx, volume_id)


async def _set_status(ctx: Context, volume_id: str, action: str, rule: str) -> None:
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + rule, lock=True)
        transition = states.check(volume, action)
        assert transition.then is not None
        await model.set_status(tx, volume_id, transition.then)


async def check_unused(ctx: Context, volume_id: str, rule: str, attachment_id: str | None) -> list[str]:
    """Refuse (409) to detach the volume from a server that uses it: one attachment, or all.

    Returns the ids of the checked attachments. New ones may be created meanwhile.
    """
    await model.find(ctx, ctx.db, volume_id, rule=rule)
    rows = [row for row in await attachments.of_volume(ctx.db, volume_id) if attachment_id in (None, row.id)]
    for row in rows:
        await usage.check_unused(ctx, row)
    return [row.id for row in rows]


async def _detach(tx: Transaction, volume: Volume, attachment_id: str | None, unused: list[str]) -> None:
    existing = await attachments.of_volume(tx, volume.id)
    if attachment_id is not None:
        existing = [row for row in existing if row.id == attachment_id]
        if not existing:
            raise NotFound(f"Volume attachment could not be found with filter: attachment_id = {attachment_id}.")
    elif len(existing) > 1:
        raise BadRequest(f"Invalid volume: Volume {volume.id} is attached several times: attachment_id is required.")
    for row in existing:
        if row.id in unused:
            await attachments.delete(tx, row.id)
    await model.derive_status(tx, volume.id)
