"""Actions by which volumes were attached before there were attachments; and those that compute still uses."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.pieces import ANYTHING
from kilonova.ids import new_id
from kilonova.store import Row, Transaction
from kilonova.volume.api import VOLUME_ACTION, api
from kilonova.volume.attachments import connecting, guarding
from kilonova.volume.attachments import model as attachments
from kilonova.volume.exports import attaching as exports
from kilonova.volume.volumes import action_schemas as schemas
from kilonova.volume.volumes import model, states

RULE = "volume_extension:volume_actions:"
FORCE = "volume_extension:volume_admin_actions:force_detach"


@api.action("os-reserve", at=VOLUME_ACTION, checks=[RULE + "reserve"], body=ANYTHING, status=202)
async def reserve(ctx: Context, volume_id: str) -> None:
    """Say that a volume is about to be attached."""
    await _move(ctx, volume_id, "os-reserve", "reserve")


@api.action("os-unreserve", at=VOLUME_ACTION, checks=[RULE + "unreserve"], body=ANYTHING, status=202)
async def unreserve(ctx: Context, volume_id: str) -> None:
    """Say that a volume will not be attached after all."""
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "unreserve", lock=True)
        states.check(volume, "os-unreserve")
        await model.derive_status(tx, volume_id)


@api.action("os-begin_detaching", at=VOLUME_ACTION, checks=[RULE + "begin_detaching"], body=ANYTHING, status=202)
async def begin_detaching(ctx: Context, volume_id: str) -> None:
    """Say that a volume is about to be detached."""
    await _move(ctx, volume_id, "os-begin_detaching", "begin_detaching")


@api.action("os-roll_detaching", at=VOLUME_ACTION, checks=[RULE + "roll_detaching"], body=ANYTHING, status=202)
async def roll_detaching(ctx: Context, volume_id: str) -> None:
    """Say that a volume stays attached after all; of one that nobody is detaching it is true already."""
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "roll_detaching", lock=True)
        if volume["status"] == states.DETACHING:
            await model.derive_status(tx, volume_id)


@api.action("os-attach", at=VOLUME_ACTION, checks=[RULE + "attach"], body=schemas.ATTACH, status=202)
async def attach(ctx: Context, volume_id: str) -> None:
    """Say that a server, or a host, has a volume."""
    asked = ctx.body["os-attach"]
    server_id, host = asked.get("instance_uuid"), asked.get("host_name")
    if bool(server_id) == bool(host):
        raise BadRequest("Invalid request: either instance_uuid or host_name must be specified, and not both.")
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "attach", lock=True)
        states.check(volume, "os-attach")
        there = await attachments.of_volume(tx, volume_id)
        early = next((row for row in there if _is_early(row)), None)
        connecting.check_alone(volume, [row for row in there if row is not early], server_id)
        if early is not None:
            await attachments.delete(tx, early["id"])
        row = {
            **(early or {"id": new_id()}),
            "volume_id": volume_id,
            "project_id": volume["project_id"],
            "server_id": server_id,
            "status": attachments.ATTACHED,
            "mode": connecting.mode_of(volume, asked.get("mode")),
            "host": host or (early["host"] if early else None),
            "mountpoint": asked["mountpoint"],
            "created_at": ctx.now,
            "updated_at": ctx.now,
            "attached_at": ctx.now,
        }
        await attachments.create(tx, row)
        await model.derive_status(tx, volume_id)


@api.action("os-detach", at=VOLUME_ACTION, checks=[RULE + "detach"], body=schemas.DETACH, status=202)
async def detach(ctx: Context, volume_id: str) -> None:
    """Say that a server, or a host, does not have a volume any more."""
    asked = ctx.body["os-detach"] or {}
    unused = await check_unused(ctx, volume_id, RULE + "detach", asked.get("attachment_id"))
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "detach", lock=True)
        states.check(volume, "os-detach")
        await _detach(tx, volume, asked.get("attachment_id"), unused)
    await exports.settle(ctx, volume_id)


@api.action("os-force_detach", at=VOLUME_ACTION, checks=[FORCE], body=schemas.FORCE_DETACH, status=202)
async def force_detach(ctx: Context, volume_id: str) -> None:
    """Take a volume from a server, or a host, whatever its status."""
    asked = ctx.body["os-force_detach"] or {}
    unused = await check_unused(ctx, volume_id, FORCE, asked.get("attachment_id"))
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=FORCE, lock=True)
        await _detach(tx, volume, asked.get("attachment_id"), unused)
        if volume["status"] not in states.BUSY:
            await model.set_status(tx, volume_id, await model.settled(tx, volume_id))
    await exports.settle(ctx, volume_id)


@api.action(
    "os-initialize_connection",
    at=VOLUME_ACTION,
    checks=[RULE + "initialize_connection"],
    body=schemas.CONNECT,
    status=200,
)
async def initialize_connection(ctx: Context, volume_id: str) -> Answer:
    """Tell how a host reaches a volume."""
    connector = ctx.body["os-initialize_connection"]["connector"]
    volume = await model.find(ctx, ctx.db, volume_id, rule=RULE + "initialize_connection")
    mode = connecting.mode_of(volume, connector.get("mode"))
    address = await exports.address_for(ctx, connector)
    if address is not None:
        way = await _export(ctx, volume_id, connector, mode, address)
    else:
        way = connecting.connection_of(volume, "", mode, ctx.services.config)
    kind = way.pop("driver_volume_type")
    return Answer({"connection_info": {"driver_volume_type": kind, "data": way}})


async def _export(
    ctx: Context, volume_id: str, connector: dict[str, Any], mode: str, address: dict[str, Any]
) -> dict[str, Any]:
    """An export is somebody's: the attachment of the same host, or one that os-attach will say more of."""
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "initialize_connection", lock=True)
        there = await attachments.of_volume(tx, volume_id)
        row = next((one for one in there if exports.is_export(one) and _is_of(one, connector)), None)
        if row is None:
            ident = new_id()
            way = connecting.connection_of(volume, ident, mode, ctx.services.config, exports.way(address, ident))
            row = await attachments.create(
                tx,
                {
                    "id": ident,
                    "volume_id": volume_id,
                    "project_id": volume["project_id"],
                    "status": attachments.ATTACHING,
                    "mode": mode,
                    "host": attachments.host_of(connector),
                    "connector": orjson.dumps(connector).decode(),
                    "connection": orjson.dumps(way).decode(),
                    "created_at": ctx.now,
                    "updated_at": ctx.now,
                },
            )
            await model.derive_status(tx, volume_id)
    await exports.bring(ctx, volume_id)
    found: dict[str, Any] = orjson.loads(row["connection"])
    return found


def _is_of(row: Row, connector: dict[str, Any] | None) -> bool:
    return connector is None or row["host"] == attachments.host_of(connector)


def _is_early(row: Row) -> bool:
    """A connection that was made before anybody said for what."""
    return row["server_id"] is None and row["status"] == attachments.ATTACHING and exports.is_export(row)


@api.action(
    "os-terminate_connection",
    at=VOLUME_ACTION,
    checks=[RULE + "terminate_connection"],
    body=schemas.DISCONNECT,
    status=202,
)
async def terminate_connection(ctx: Context, volume_id: str) -> None:
    """Say that a host does not reach a volume any more; a file needs nothing for that."""
    connector = ctx.body["os-terminate_connection"].get("connector")
    unused = await check_unused(ctx, volume_id, RULE + "terminate_connection", None)
    there = [row for row in await attachments.of_volume(ctx.db, volume_id) if row["id"] in unused]
    found = [row for row in there if exports.is_export(row) and _is_of(row, connector)]
    await exports.cut(ctx, found)
    if any(_is_early(row) for row in found):
        async with ctx.db.transaction() as tx:
            await model.find(ctx, tx, volume_id, rule=RULE + "terminate_connection", lock=True)
            for row in found:
                if _is_early(row):
                    await attachments.delete(tx, row["id"])
            await model.derive_status(tx, volume_id)


async def _move(ctx: Context, volume_id: str, action: str, rule: str) -> None:
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + rule, lock=True)
        transition = states.check(volume, action)
        assert transition.then is not None
        await model.set_status(tx, volume_id, transition.then)


async def check_unused(ctx: Context, volume_id: str, rule: str, attachment_id: str | None) -> list[str]:
    """Refuse (409) what would take the volume from a server that has it; of one attachment, or of all.

    The ids of those that were looked at: others may come meanwhile.
    """
    await model.find(ctx, ctx.db, volume_id, rule=rule)
    rows = [row for row in await attachments.of_volume(ctx.db, volume_id) if attachment_id in (None, row["id"])]
    for row in rows:
        await guarding.check_unused(ctx, row)
    return [row["id"] for row in rows]


async def _detach(tx: Transaction, volume: Row, attachment_id: str | None, unused: list[str]) -> None:
    there = await attachments.of_volume(tx, volume["id"])
    if attachment_id is not None:
        there = [row for row in there if row["id"] == attachment_id]
        if not there:
            raise NotFound(f"Volume attachment could not be found with filter: attachment_id = {attachment_id}.")
    elif len(there) > 1:
        raise BadRequest(
            f"Invalid volume: Volume {volume['id']} is attached several times: say which one by attachment_id."
        )
    for row in there:
        if row["id"] in unused:
            await attachments.delete(tx, row["id"])
    await model.derive_status(tx, volume["id"])
