"""Actions on the addresses of a server, for clients from before they asked the network service themselves."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from kilonova.compute.api import api
from kilonova.compute.operations import nics
from kilonova.compute.operations.change_addresses import AddAddress, RemoveAddress
from kilonova.compute.servers import acting, awaiting, model
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Conflict, Forbidden, NotFound
from kilonova.http.pieces import Schema, closed
from kilonova.network.client import NetworkError
from kilonova.operations import Operation
from kilonova.operations.errors import Failed
from kilonova.store import Row

FIXED, FLOATING = "os_compute_api:os-multinic:", "os_compute_api:os-floating-ips:"
ADDRESS: Schema = {"type": "string", "format": "ip"}
NETWORK: Schema = {"type": ["string", "number"], "minLength": 1, "maxLength": 36}
ADD_FIXED: Schema = closed({"networkId": NETWORK}, ["networkId"])
REMOVE: Schema = closed({"address": ADDRESS}, ["address"])
ADD_FLOATING: Schema = closed({"address": ADDRESS, "fixed_address": ADDRESS}, ["address"])
# How long who asks for a change is kept waiting while something else happens to the server.
PATIENCE = 10.0
Item = dict[str, Any]


@api.action("addFixedIp", body=ADD_FIXED, checks=[FIXED + "add"], status=202)
async def add_fixed(ctx: Context, server_id: str) -> Answer:
    """Give a server another address on one of its networks."""
    row = await model.find(ctx, ctx.db, server_id, rule=FIXED + "add")
    network_id = str(ctx.body["addFixedIp"]["networkId"])
    if all(nic["network_id"] != network_id for nic in nics.of(row)):
        raise NotFound(f"Network {network_id} is not one of server {server_id}.")
    return await _change(ctx, server_id, FIXED + "add", AddAddress, {"network_id": network_id})


@api.action("removeFixedIp", body=REMOVE, checks=[FIXED + "remove"], status=202)
async def remove_fixed(ctx: Context, server_id: str) -> Answer:
    """Take an address from a server."""
    row = await model.find(ctx, ctx.db, server_id, rule=FIXED + "remove")
    address = ctx.body["removeFixedIp"]["address"]
    if all(address not in nic["addresses"] for nic in nics.of(row)):
        raise BadRequest(f"Fixed IP address {address} is not one of server {server_id}.")
    return await _change(ctx, server_id, FIXED + "remove", RemoveAddress, {"address": address})


@api.action("addFloatingIp", body=ADD_FLOATING, checks=[FLOATING + "add"], status=202)
async def add_floating(ctx: Context, server_id: str) -> Answer:
    """Lead a floating address to a server."""
    row = await _unlocked(ctx, server_id, FLOATING + "add")
    asked = ctx.body["addFloatingIp"]
    port_id, fixed = _fixed(row, asked.get("fixed_address"))
    floating = await _floating(ctx, asked["address"])
    await _lead(ctx, floating, {"port_id": port_id, "fixed_ip_address": fixed})
    return Answer()


@api.action("removeFloatingIp", body=REMOVE, checks=[FLOATING + "remove"], status=202)
async def remove_floating(ctx: Context, server_id: str) -> Answer:
    """Lead a floating address to a server no longer."""
    row = await _unlocked(ctx, server_id, FLOATING + "remove")
    floating = await _floating(ctx, ctx.body["removeFloatingIp"]["address"])
    if floating["port_id"] is None or nics.find(row, floating["port_id"]) is None:
        raise Conflict(f"Floating IP {floating['floating_ip_address']} is not associated with instance {server_id}.")
    await _lead(ctx, floating, {"port_id": None})
    return Answer()


async def _unlocked(ctx: Context, server_id: str, rule: str) -> Row:
    row = await model.find(ctx, ctx.db, server_id, rule=rule)
    acting.check_unlocked(ctx, row)
    return row


async def _change(ctx: Context, server_id: str, rule: str, operation: type[Operation], params: Item) -> Answer:
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, server_id, rule=rule, lock=True)
        acting.check_unlocked(ctx, row)
        operation_id = await acting.start(ctx, tx, row, operation, params)
    try:
        await awaiting.outcome(ctx, operation_id, PATIENCE)
    except Failed as failure:
        raise BadRequest(str(failure)) from None
    return Answer()


def _fixed(row: Row, asked: str | None) -> tuple[str, str]:
    """The port and the address that a floating one is to lead to: floating ones are of IPv4."""
    known = [(nic["port_id"], address) for nic in nics.of(row) for address in nic["addresses"] if ":" not in address]
    if not known:
        raise BadRequest("No fixed IPs associated to instance")
    found = next((one for one in known if asked in (None, one[1])), None)
    if found is None:
        raise BadRequest("Specified fixed address not assigned to instance")
    return found


async def _floating(ctx: Context, address: str) -> Item:
    """As the caller sees it."""
    path = "/floatingips?" + urlencode({"floating_ip_address": address})
    found: list[Item] = (await ctx.services.network.request("GET", path, ctx.auth_token))["floatingips"]
    if not found:
        raise NotFound(f"floating IP {address} not found")
    return found[0]


async def _lead(ctx: Context, floating: Item, where: Item) -> None:
    try:
        await ctx.services.network.request(
            "PUT", f"/floatingips/{floating['id']}", ctx.auth_token, {"floatingip": where}
        )
    except NetworkError as error:
        raise (Forbidden if error.status == 403 else BadRequest)(str(error)) from None
