"""Evacuate a server from a host that is down."""

from __future__ import annotations

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.evacuate import Evacuate, EvacuateParams
from kilonova.compute.servers import action_checks, states
from kilonova.compute.servers.create import new_password
from kilonova.compute.servers.schemas import HOST
from kilonova.compute.servers.server import Server
from kilonova.hosts.heartbeat import is_up
from kilonova.hosts.registry import find_compute_service
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.parameter_types import STRING, Schema, closed_object
from kilonova.store import Reader

RULE = "os_compute_api:os-evacuate"
NO_PASSWORD = api.behaviour("evacuation answers without a password")
LEFT_STOPPED = api.behaviour("an evacuated server is left stopped")

EVACUATE: Schema = closed_object({"host": HOST, "adminPass": STRING})


@api.action("evacuate", body=EVACUATE, checks=[RULE], dry_run=True)
async def evacuate(ctx: Context, server_id: str) -> Response:
    """Rebuild a server of a failed host on another host."""
    requested = ctx.body["evacuate"]
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_ready(ctx, tx, server_id, rule=RULE, transition="evacuate")
        await _check_hosts(ctx, tx, server, requested.get("host"))
        params = EvacuateParams(
            host=requested.get("host"),
            unverified=requested.get("unverified", False),
            start=server.vm_state == states.ACTIVE and not ctx.has_behaviour(LEFT_STOPPED),
        )
        if not dry_run.is_requested(ctx):
            await action_checks.begin_move_operation(ctx, tx, server, Evacuate, moves.EVACUATION, params)
    if dry_run.is_requested(ctx):
        return await dry_run.move_plan_response(ctx, server, params)
    if ctx.has_behaviour(NO_PASSWORD):
        return Response()
    return Response({"adminPass": requested.get("adminPass") or new_password()})


async def _check_hosts(ctx: Context, reader: Reader, server: Server, destination: str | None) -> None:
    if destination is not None:
        if await find_compute_service(reader, destination) is None:
            raise NotFound(f"Compute host {destination} could not be found.")
        if destination == server.host:
            raise BadRequest("The target host can't be the same one.")
    source = await find_compute_service(reader, server.host_name)
    if source is not None and is_up(source, ctx.now, ctx.services.config.hosts.down_seconds):
        raise BadRequest(f"Compute service of {server.host} is still in use.")
