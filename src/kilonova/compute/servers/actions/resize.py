"""Resize a server, and confirm or revert a resize or migration."""

from __future__ import annotations

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.flavors import lookup as flavors
from kilonova.compute.flavors.model import Flavor
from kilonova.compute.migrations import model as moves
from kilonova.compute.migrations.model import MoveFlavor
from kilonova.compute.operations.confirm_resize import ConfirmResize
from kilonova.compute.operations.resize import Resize, ResizeParams
from kilonova.compute.operations.revert_resize import RevertResize
from kilonova.compute.operations.steps import plugged, power
from kilonova.compute.operations.steps.move import EndResizeParams
from kilonova.compute.quotas import model as quotas
from kilonova.compute.quotas.source import Source, find_source_of_server
from kilonova.compute.servers import action_checks, model
from kilonova.compute.servers.create import check_needs
from kilonova.compute.servers.schemas import DISK_CONFIG, FLAVOR_REF
from kilonova.compute.servers.server import EmbeddedFlavor, Server
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import ANYTHING, Schema, closed_object
from kilonova.operations import Operation
from kilonova.store import Transaction

RULE = "os_compute_api:servers:"

RESIZE_BODY: Schema = closed_object({"flavorRef": FLAVOR_REF, "OS-DCF:diskConfig": DISK_CONFIG}, ["flavorRef"])


@api.action("resize", body=RESIZE_BODY, checks=[RULE + "resize"], status=202, dry_run=True)
async def resize(ctx: Context, server_id: str) -> Response:
    """Resize a server to another flavor."""
    requested, source = ctx.body["resize"], await find_source_of_server(ctx, server_id)
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_ready(ctx, tx, server_id, rule=RULE + "resize", transition="resize")
        flavor = await _new_flavor(ctx, tx, server, str(requested["flavorRef"]))
        await _check_quota(tx, source, server, flavor.embed())
        params = ResizeParams(
            flavor=flavor.embed(),
            same_host=ctx.services.config.compute.resize_on_same_host,
            disk_config=requested.get("OS-DCF:diskConfig"),
            grace=power.shutdown_grace(server),
        )
        if not dry_run.is_requested(ctx):
            await begin_resize(
                tx,
                server,
                flavor.flavor_id,
                params,
                ctx.token.user_id,
                ctx.request_id,
                without=plugged.steps_to_skip(ctx.services),
            )
            return Response()
    return await dry_run.move_plan_response(ctx, server, params)


async def begin_resize(
    tx: Transaction,
    server: Server,
    flavor_id: str,
    params: ResizeParams,
    user_id: str,
    request_id: str | None,
    without: frozenset[str] = frozenset(),
) -> str:
    """Begin a resize, without the steps `without`.

    The larger of both flavors counts for the quota until it ends, then the new one.
    """
    assert params.flavor is not None
    await model.set_quota_usage(tx, server.id, params.flavor, server.flavor)
    return await moves.begin_move(
        tx,
        Resize,
        server,
        type=moves.RESIZE,
        params=params,
        user_id=user_id,
        request_id=request_id,
        new_flavor=MoveFlavor.of(flavor_id, params.flavor),
        without=without,
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
    ctx: Context, server_id: str, operation: type[Operation[EndResizeParams]], *, rule: str, transition: str
) -> Response:
    source = await find_source_of_server(ctx, server_id)
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_ready(ctx, tx, server_id, rule=rule, transition=transition)
        move = await moves.find_unconfirmed(tx, server_id)
        if move is None:
            raise BadRequest("Instance has not been resized.")
        if operation is RevertResize:
            await _reserve_quota(ctx, tx, source, server, move.old_flavor.embedded)
        if not dry_run.is_requested(ctx):
            params = EndResizeParams(move.operation_id, power.shutdown_grace(server))
            without = plugged.steps_to_skip(ctx.services) if operation is RevertResize else frozenset()
            await action_checks.begin_operation(ctx, tx, server, operation, params, without=without)
            return Response()
    return await dry_run.plan_response(ctx, model.target(server), [])


async def _reserve_quota(ctx: Context, tx: Transaction, source: Source, server: Server, old: EmbeddedFlavor) -> None:
    """Check the quota for the flavor before the resize. The larger of both flavors counts until the revert ends."""
    await _check_quota(tx, source, server, old)
    if not dry_run.is_requested(ctx):
        await model.set_quota_usage(tx, server.id, old, server.flavor)


async def _new_flavor(ctx: Context, tx: Transaction, server: Server, reference: str) -> Flavor:
    """The new flavor, if the server's disk and image fit it."""
    flavor, old = await flavors.get_referenced(ctx, tx, reference), server.flavor
    if flavor.flavor_id == server.flavor_id:
        raise BadRequest("When resizing, instances must change flavor!")
    properties = server.image_properties
    # A volume-backed server has no local root disk.
    root_disk = not server.is_volume_backed
    if root_disk and flavor.disk == 0 and old.disk:
        raise BadRequest("Resize to zero disk flavor is not allowed.")
    if (root_disk and flavor.disk < old.disk) or flavor.ephemeral < old.ephemeral:
        raise BadRequest("Resize error: Unable to resize disk down.")
    if int(properties.get("min_ram", 0)) > flavor.ram:
        raise BadRequest("Flavor's memory is too small for requested image.")
    if root_disk and flavor.disk and int(properties.get("min_disk", 0)) > flavor.disk:
        raise BadRequest("Flavor's disk is smaller than the minimum size specified in image metadata.")
    check_needs(flavor.flavor_id, flavor, properties, root_disk=root_disk)
    return flavor


async def _check_quota(tx: Transaction, source: Source, server: Server, flavor: EmbeddedFlavor) -> None:
    root_disk = not server.is_volume_backed
    more = source.more_needed(server.flavor, flavor, server.image_properties, root_disk=root_disk)
    await quotas.count_within_quota(tx, server.project_id, source, more, user_id=server.user_id)
