"""Server actions on fixed and floating IPs (before 2.44; newer clients use the network service)."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.operations.change_ports import AddFixedIp, AddFixedIpParams, RemoveFixedIp, RemoveFixedIpParams
from kilonova.compute.servers import action_checks, model
from kilonova.compute.servers.operation_result import run_operation
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, Forbidden, NotFound
from kilonova.http.parameter_types import Schema, closed_object
from kilonova.network.client import Attributes, FloatingIp, NetworkError

FIXED, FLOATING = "os_compute_api:os-multinic:", "os_compute_api:os-floating-ips:"
ADDRESS: Schema = {"type": "string", "format": "ip"}
NETWORK: Schema = {"type": ["string", "number"], "minLength": 1, "maxLength": 36}
ADD_FIXED: Schema = closed_object({"networkId": NETWORK}, ["networkId"])
REMOVE: Schema = closed_object({"address": ADDRESS}, ["address"])
ADD_FLOATING: Schema = closed_object({"address": ADDRESS, "fixed_address": ADDRESS}, ["address"])


@api.action("addFixedIp", body=ADD_FIXED, checks=[FIXED + "add"], status=202)
async def add_fixed(ctx: Context, server_id: str) -> Response:
    """Add a fixed IP on one of the server's networks."""
    server = await model.find(ctx, ctx.db, server_id, rule=FIXED + "add")
    network_id = str(ctx.body["addFixedIp"]["networkId"])
    if all(interface.network_id != network_id for interface in server.nics):
        raise NotFound(f"Server {server_id} has no interface on network {network_id}.")
    return await run_operation(ctx, server_id, FIXED + "add", AddFixedIp, AddFixedIpParams(network_id))


@api.action("removeFixedIp", body=REMOVE, checks=[FIXED + "remove"], status=202)
async def remove_fixed(ctx: Context, server_id: str) -> Response:
    """Remove a fixed IP from a server."""
    server = await model.find(ctx, ctx.db, server_id, rule=FIXED + "remove")
    address = ctx.body["removeFixedIp"]["address"]
    if all(address not in interface.addresses for interface in server.nics):
        raise BadRequest(f"Server {server_id} has no fixed IP address {address}.")
    return await run_operation(ctx, server_id, FIXED + "remove", RemoveFixedIp, RemoveFixedIpParams(address))


@api.action("addFloatingIp", body=ADD_FLOATING, checks=[FLOATING + "add"], status=202)
async def add_floating(ctx: Context, server_id: str) -> Response:
    """Associate a floating IP with a server."""
    server = await _find_unlocked(ctx, server_id, FLOATING + "add")
    requested = ctx.body["addFloatingIp"]
    port_id, fixed = _find_fixed(server, requested.get("fixed_address"))
    floating = await _find_floating(ctx, requested["address"])
    await _associate(ctx, floating, {"port_id": port_id, "fixed_ip_address": fixed})
    return Response()


@api.action("removeFloatingIp", body=REMOVE, checks=[FLOATING + "remove"], status=202)
async def remove_floating(ctx: Context, server_id: str) -> Response:
    """Disassociate a floating IP from a server."""
    server = await _find_unlocked(ctx, server_id, FLOATING + "remove")
    floating = await _find_floating(ctx, ctx.body["removeFloatingIp"]["address"])
    if floating.port_id is None or server.find_interface(floating.port_id) is None:
        raise Conflict(f"Floating IP {floating.floating_ip_address} is not associated with instance {server_id}.")
    await _associate(ctx, floating, {"port_id": None})
    return Response()


async def _find_unlocked(ctx: Context, server_id: str, rule: str) -> Server:
    server = await model.find(ctx, ctx.db, server_id, rule=rule)
    action_checks.check_unlocked(ctx, server)
    return server


def _find_fixed(server: Server, requested: str | None) -> tuple[str, str]:
    """The port and the fixed IPv4 address to associate a floating IP with."""
    known = [
        (interface.port_id, address)
        for interface in server.nics
        for address in interface.addresses
        if ":" not in address
    ]
    if not known:
        raise BadRequest("No fixed IPs associated to instance")
    found = next((fixed for fixed in known if requested in (None, fixed[1])), None)
    if found is None:
        raise BadRequest("Specified fixed address not assigned to instance")
    return found


async def _find_floating(ctx: Context, address: str) -> FloatingIp:
    """The floating IP, if the caller can see it."""
    found = await ctx.services.network.floating_ips_with_address(address, ctx.auth_token)
    if not found:
        raise NotFound(f"floating IP {address} not found")
    return found[0]


async def _associate(ctx: Context, floating: FloatingIp, target: Attributes) -> None:
    try:
        await ctx.services.network.update_floating_ip(floating.id, target, ctx.auth_token)
    except NetworkError as error:
        raise (Forbidden if error.status == 403 else BadRequest)(str(error)) from None
