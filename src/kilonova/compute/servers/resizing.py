"""Resizing: another flavor or another host for a server that stands still meanwhile; then to keep it or go back."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.block_devices.model import is_volume_backed
from kilonova.compute.flavors import lookup as flavors
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations import stopping
from kilonova.compute.operations.confirm_resize import ConfirmResize
from kilonova.compute.operations.resize import Migrate, Resize
from kilonova.compute.operations.revert_resize import RevertResize
from kilonova.compute.quotas import model as quotas
from kilonova.compute.servers import acting, model
from kilonova.compute.servers.create import flavor_copy
from kilonova.compute.servers.schemas import DISK_CONFIG, FLAVOR_REF, HOST
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest
from kilonova.http.pieces import ANYTHING, Schema, closed
from kilonova.operations import Operation
from kilonova.scheduler.specs import needs
from kilonova.store import Row, Transaction

RULE = "os_compute_api:servers:"
MIGRATE = "os_compute_api:os-migrate-server:migrate"
TO_HOST = MIGRATE + ":host"

RESIZE_BODY: Schema = closed({"flavorRef": FLAVOR_REF, "OS-DCF:diskConfig": DISK_CONFIG}, ["flavorRef"])
MIGRATE_BODY: Schema = closed({"host": {**HOST, "type": ["string", "null"]}}, type=["object", "null"])


@api.action("resize", body=RESIZE_BODY, checks=[RULE + "resize"], status=202, dry_run=True)
async def resize(ctx: Context, server_id: str) -> Answer:
    """Give a server another flavor."""
    asked = ctx.body["resize"]
    async with ctx.db.transaction() as tx:
        row = await acting.ready(ctx, tx, server_id, rule=RULE + "resize", transition="resize")
        flavor = await _new_flavor(ctx, tx, row, str(asked["flavorRef"]))
        await _check_quota(ctx, tx, row, flavor)
        params = moves.params_of(
            flavor=flavor_copy(flavor),
            same_host=ctx.services.config.compute.resize_on_same_host,
            disk_config=asked.get("OS-DCF:diskConfig"),
            **stopping.params_of(row),
        )
        if not dry_run.asked(ctx):
            await begin_resize(tx, row, flavor["flavor_id"], params, ctx.token.user_id, ctx.request_id)
            return Answer()
    return await dry_run.answer_move(ctx, row, params)


async def begin_resize(
    tx: Transaction, server: Row, flavor_id: str, params: dict[str, Any], user_id: str, request_id: str | None
) -> str:
    """From here on the server counts as the larger of both flavors, until it is decided which of them it has."""
    new = params["flavor"]
    await model.count(tx, server["id"], new, orjson.loads(server["flavor"]))
    return await moves.begin_move(
        tx,
        Resize,
        server,
        type=moves.RESIZE,
        params=params,
        user_id=user_id,
        request_id=request_id,
        new_flavor={"flavor_id": flavor_id, **new},
    )


@api.action("migrate", body=MIGRATE_BODY, checks=[MIGRATE, TO_HOST], status=202, dry_run=True)
async def migrate(ctx: Context, server_id: str) -> Answer:
    """Move a server to another host, switched off meanwhile."""
    host = (ctx.body["migrate"] or {}).get("host")
    async with ctx.db.transaction() as tx:
        if host is not None:
            await model.find(ctx, tx, server_id, rule=TO_HOST)
        row = await acting.ready(ctx, tx, server_id, rule=MIGRATE, transition="migrate")
        params = moves.params_of(host=host, **stopping.params_of(row))
        await acting.check_destination(tx, row, host)
        if not dry_run.asked(ctx):
            await acting.start_move(ctx, tx, row, Migrate, moves.MIGRATION, params)
            return Answer()
    return await dry_run.answer_move(ctx, row, params)


@api.action("confirmResize", body=ANYTHING, checks=[RULE + "confirm_resize"], status=204, dry_run=True)
async def confirm(ctx: Context, server_id: str) -> Answer:
    """Keep a resized or migrated server as it is."""
    return await _decide(ctx, server_id, ConfirmResize, rule=RULE + "confirm_resize", transition="confirmResize")


@api.action("revertResize", body=ANYTHING, checks=[RULE + "revert_resize"], status=202, dry_run=True)
async def revert(ctx: Context, server_id: str) -> Answer:
    """Take a resized or migrated server back to what and where it was."""
    return await _decide(ctx, server_id, RevertResize, rule=RULE + "revert_resize", transition="revertResize")


async def _decide(ctx: Context, server_id: str, operation: type[Operation], *, rule: str, transition: str) -> Answer:
    async with ctx.db.transaction() as tx:
        row = await acting.ready(ctx, tx, server_id, rule=rule, transition=transition)
        move = await moves.waiting(tx, server_id)
        if move is None:
            raise BadRequest("Instance has not been resized.")
        if not dry_run.asked(ctx):
            params = {"move": move["operation_id"], **stopping.params_of(row)}
            await acting.start(ctx, tx, row, operation, params)
            return Answer()
    return await dry_run.answer(ctx, model.target(row), [])


async def _new_flavor(ctx: Context, tx: Transaction, row: Row, reference: str) -> Row:
    """What the server, with the disk and the image it has, can become."""
    flavor, old = await flavors.referred(ctx, tx, reference), orjson.loads(row["flavor"])
    if flavor["flavor_id"] == row["flavor_id"]:
        raise BadRequest("When resizing, instances must change flavor!")
    properties = orjson.loads(row["image_properties"])
    # What boots from a volume has no root disk that could be too large or too small.
    root_disk = not is_volume_backed(row)
    if root_disk and flavor["disk"] == 0 and old["disk"]:
        raise BadRequest("Resize to zero disk flavor is not allowed.")
    if (root_disk and flavor["disk"] < old["disk"]) or flavor["ephemeral"] < old["ephemeral"]:
        raise BadRequest("Resize error: Unable to resize disk down.")
    if int(properties.get("min_ram", 0)) > flavor["ram"]:
        raise BadRequest("Flavor's memory is too small for requested image.")
    if root_disk and flavor["disk"] and int(properties.get("min_disk", 0)) > flavor["disk"]:
        raise BadRequest("Flavor's disk is smaller than the minimum size specified in image metadata.")
    try:
        needs(flavor_copy(flavor), properties, root_disk=root_disk)
    except ValueError as error:
        raise BadRequest(f"Flavor {flavor['flavor_id']} cannot be placed: {error}") from None
    return flavor


async def _check_quota(ctx: Context, tx: Transaction, row: Row, flavor: Row) -> None:
    more = {"cores": flavor["vcpus"] - row["vcpus"], "ram": flavor["ram"] - row["ram"]}
    await quotas.fit(tx, row["project_id"], ctx.services.config, more, user_id=row["user_id"])
