"""Resize a server, and confirm or revert a resize or migration."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.block_devices.model import is_volume_backed
from kilonova.compute.flavors import lookup as flavors
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.confirm_resize import ConfirmResize
from kilonova.compute.operations.resize import Resize
from kilonova.compute.operations.revert_resize import RevertResize
from kilonova.compute.operations.steps import power
from kilonova.compute.quotas import model as quotas
from kilonova.compute.servers import action_checks, model
from kilonova.compute.servers.create import flavor_copy
from kilonova.compute.servers.schemas import DISK_CONFIG, FLAVOR_REF
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import ANYTHING, Schema, closed_object
from kilonova.operations import Operation
from kilonova.scheduler.requirements import host_requirements
from kilonova.store import Row, Transaction

RULE = "os_compute_api:servers:"

RESIZE_BODY: Schema = closed_object({"flavorRef": FLAVOR_REF, "OS-DCF:diskConfig": DISK_CONFIG}, ["flavorRef"])


@api.action("resize", body=RESIZE_BODY, checks=[RULE + "resize"], status=202, dry_run=True)
async def resize(ctx: Context, server_id: str) -> Response:
    """Resize a server to another flavor."""
    requested = ctx.body["resize"]
    async with ctx.db.transaction() as tx:
        row = await action_checks.find_ready(ctx, tx, server_id, rule=RULE + "resize", transition="resize")
        flavor = await _new_flavor(ctx, tx, row, str(requested["flavorRef"]))
        await _check_quota(ctx, tx, row, flavor)
        params = moves.move_params(
            flavor=flavor_copy(flavor),
            same_host=ctx.services.config.compute.resize_on_same_host,
            disk_config=requested.get("OS-DCF:diskConfig"),
            **power.shutdown_params(row),
        )
        if not dry_run.is_requested(ctx):
            await begin_resize(tx, row, flavor["flavor_id"], params, ctx.token.user_id, ctx.request_id)
            return Response()
    return await dry_run.move_plan_response(ctx, row, params)


async def begin_resize(
    tx: Transaction, server: Row, flavor_id: str, params: dict[str, Any], user_id: str, request_id: str | None
) -> str:
    """Begin a resize. Until it is confirmed or reverted, the larger of both flavors counts for the quota."""
    new = params["flavor"]
    await model.set_quota_usage(tx, server["id"], new, orjson.loads(server["flavor"]))
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


@api.action("confirmResize", body=ANYTHING, checks=[RULE + "confirm_resize"], status=204, dry_run=True)
async def confirm(ctx: Context, server_id: str) -> Response:
    """Confirm a resize or migration."""
    return await _confirm_or_revert(
        ctx, server_id, ConfirmResize, rule=RULE + "confirm_resize", transition="confirmResize"
    )


@api.action("revertResize", body=ANYTHING, checks=[RULE + "revert_resize"], status=202, dry_run=True)
async def revert(ctx: Context, server_id: str) -> Response:
    """Revert a resize or migration."""
    return await _confirm_or_revert(
        ctx, server_id, RevertResize, rule=RULE + "revert_resize", transition="revertResize"
    )


async def _confirm_or_revert(
    ctx: Context, server_id: str, operation: type[Operation], *, rule: str, transition: str
) -> Response:
    async with ctx.db.transaction() as tx:
        row = await action_checks.find_ready(ctx, tx, server_id, rule=rule, transition=transition)
        move = await moves.find_unconfirmed(tx, server_id)
        if move is None:
            raise BadRequest("Instance has not been resized.")
        if not dry_run.is_requested(ctx):
            params = {"move": move["operation_id"], **power.shutdown_params(row)}
            await action_checks.begin_operation(ctx, tx, row, operation, params)
            return Response()
    return await dry_run.plan_response(ctx, model.target(row), [])


async def _new_flavor(ctx: Context, tx: Transaction, row: Row, reference: str) -> Row:
    """The new flavor, if the server's disk and image fit it."""
    flavor, old = await flavors.get_referenced(ctx, tx, reference), orjson.loads(row["flavor"])
    if flavor["flavor_id"] == row["flavor_id"]:
        raise BadRequest("When resizing, instances must change flavor!")
    properties = orjson.loads(row["image_properties"])
    # A volume-backed server has no local root disk.
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
        host_requirements(flavor_copy(flavor), properties, root_disk=root_disk)
    except ValueError as error:
        raise BadRequest(f"Flavor {flavor['flavor_id']} cannot be placed: {error}") from None
    return flavor


async def _check_quota(ctx: Context, tx: Transaction, row: Row, flavor: Row) -> None:
    more = {"cores": flavor["vcpus"] - row["vcpus"], "ram": flavor["ram"] - row["ram"]}
    await quotas.count_within_quota(tx, row["project_id"], ctx.services.config, more, user_id=row["user_id"])
