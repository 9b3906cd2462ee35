"""Shelve, offload and unshelve a server."""

from __future__ import annotations

from msgspec import UNSET

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.operations import unshelve as unshelving
from kilonova.compute.operations.shelve import Offload, Shelve
from kilonova.compute.operations.steps import plugged, power
from kilonova.compute.operations.unshelve import Unshelve, UnshelveInPlace, UnshelveParams
from kilonova.compute.servers import action_checks, model, schemas, states
from kilonova.compute.servers.server import Server
from kilonova.compute.volume_checks import check_new_zone
from kilonova.compute.zones import model as zones
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict
from kilonova.http.parameter_types import ANYTHING
from kilonova.operations import Operation
from kilonova.store import Reader, Transaction

RULE = "os_compute_api:os-shelve:"
UNSHELVE, TO_HOST = RULE + "unshelve", RULE + "unshelve_to_host"


@api.action("shelve", body=ANYTHING, checks=[RULE + "shelve"], status=202, dry_run=True)
async def shelve(ctx: Context, server_id: str) -> Response:
    """Shelve a server: stop it and keep its disk as an image."""
    return await action_checks.begin_action(
        ctx, server_id, Shelve, rule=RULE + "shelve", transition="shelve", params_of=power.stop_params
    )


@api.action("shelveOffload", body=ANYTHING, checks=[RULE + "shelve_offload"], status=202, dry_run=True)
async def offload(ctx: Context, server_id: str) -> Response:
    """Offload a shelved server from its host."""
    return await action_checks.begin_action(
        ctx, server_id, Offload, rule=RULE + "shelve_offload", transition="shelveOffload"
    )


@api.action("unshelve", body=schemas.UNSHELVE, checks=[UNSHELVE, TO_HOST], status=202, dry_run=True)
async def unshelve(ctx: Context, server_id: str) -> Response:
    """Unshelve a server: on its host, or from its image in a zone, on a host, or anywhere."""
    async with ctx.db.transaction() as tx:
        server = await _find_authorized(ctx, tx, server_id)
        params = await _params(ctx, tx, server)
        if not dry_run.is_requested(ctx):
            operation: type[Operation[UnshelveParams]] = UnshelveInPlace if server.host else Unshelve
            without = plugged.steps_to_skip(ctx.services) if operation is Unshelve else frozenset()
            await action_checks.begin_operation(ctx, tx, server, operation, params, without=without)
            return Response()
    requests = [] if server.host else [await unshelving.request_of(ctx.db, server, params)]
    return await dry_run.plan_response(ctx, model.target(server), requests)


async def _find_authorized(ctx: Context, tx: Transaction, server_id: str) -> Server:
    """Find the server. Policy is checked before the state, so that errors reveal nothing to others."""
    body = ctx.body["unshelve"] or {}
    server = await model.find(ctx, tx, server_id, rule=UNSHELVE, lock=True)
    if "host" in body:
        ctx.authorize(TO_HOST, model.target(server))
    action_checks.check_unlocked(ctx, server)
    await action_checks.check_state(tx, server, states.TRANSITIONS["unshelve"])
    if body and server.host is not None:
        raise Conflict(
            f"Cannot 'unshelve' instance {server_id} to another zone or host while it is in vm_state {server.vm_state}:"
            " it is still on its host"
        )
    return server


async def _params(ctx: Context, reader: Reader, server: Server) -> UnshelveParams:
    """The parameters of the operation: destination and pinned zone."""
    body = ctx.body["unshelve"] or {}
    default = ctx.services.config.scheduler.default_zone
    host, pin = body.get("host"), body.get("availability_zone", server.pinned_zone)
    if body.get("availability_zone") is not None and pin not in await zones.zone_names(reader, default):
        raise BadRequest("The requested availability zone is not available")
    if host is not None:
        await action_checks.check_host(reader, host)
        if pin is not None and (await zones.zone_of_hosts(reader, [host], default))[host] != pin:
            raise Conflict(f"Host {host} is not in the availability zone {pin}.")
    await check_new_zone(ctx, reader, server, pin)
    return UnshelveParams(host, body.get("availability_zone", UNSET))
