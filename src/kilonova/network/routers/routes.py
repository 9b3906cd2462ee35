"""/v2.0/routers. What they route is kept here; hosts with real guests carry it out."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound
from kilonova.network import rows
from kilonova.network.access import authorize_attributes, authorize_use, project_for, sees_all, target_of, writing
from kilonova.network.api import api
from kilonova.network.errors import port_not_found, router_not_found
from kilonova.network.listing import Attribute, Listing, Query, only
from kilonova.network.networks.routes import load as load_network
from kilonova.network.ports import model as ports
from kilonova.network.ports.model import Port
from kilonova.network.ports.routes import load as load_port
from kilonova.network.quotas.model import make_room
from kilonova.network.routers import model
from kilonova.network.routers.schema import CREATE, EXTRA_ROUTES, INTERFACE, UPDATE
from kilonova.network.schema import SHOW_KEYS, truth
from kilonova.network.subnets.routes import load as load_subnet
from kilonova.network.zones import ZONES
from kilonova.store import Reader, Row, Transaction

LISTING = Listing(
    "routers",
    "routers r",
    {
        "name": Attribute("r.name"),
        "status": Attribute("r.status"),
        "admin_state_up": Attribute("r.admin_state_up", "boolean"),
    },
)


@api.route("GET", "/v2.0/routers", policy="get_router", query=LISTING.keys)
async def index(ctx: Context) -> Answer:
    """List the project's routers."""
    query = Query()
    if not sees_all(ctx, "get_router"):
        query.add(f"r.project_id = {query.arg(ctx.token.project_id)}")
    found = await LISTING.rows(ctx, query)
    gateways = await model.gateways(ctx.db, found)
    return Answer(LISTING.answer(ctx, [model.view(row, gateways.get(row["gateway_port_id"])) for row in found]))


@api.route("GET", "/v2.0/routers/{router_id}", checks=["get_router"], query=SHOW_KEYS)
async def show(ctx: Context, router_id: str) -> Answer:
    """Show a router."""
    return Answer({"router": only(ctx, await _view(ctx.db, await _load(ctx, ctx.db, router_id)))})


async def _view(reader: Reader, row: Row) -> dict[str, Any]:
    return model.view(row, (await model.gateways(reader, [row])).get(row["gateway_port_id"]))


async def _load(ctx: Context, reader: Reader, router_id: str) -> Row:
    row = await rows.get(reader, "routers", router_id)
    if row is None or not ctx.may("get_router", target_of(row["project_id"])):
        raise router_not_found(router_id)
    return row


async def _lock(ctx: Context, tx: Transaction, router_id: str, rule: str) -> Row:
    await _load(ctx, tx, router_id)
    row = await rows.lock(tx, "routers", router_id)
    if row is None:
        raise router_not_found(router_id)
    ctx.authorize(rule, target_of(row["project_id"]))
    return row


@api.route("POST", "/v2.0/routers", checks=["create_router"], body=CREATE, status=201)
async def create(ctx: Context) -> Answer:
    """Create a router, or several at once."""
    shown = []
    async with writing(ctx) as tx:
        for body in ctx.body.get("routers") or [ctx.body["router"]]:
            shown.append(await _view(tx, await _make(ctx, tx, body)))
    return Answer({"routers": shown} if "routers" in ctx.body else {"router": shown[0]})


async def _make(ctx: Context, tx: Transaction, body: dict[str, Any]) -> Row:
    project_id = project_for(ctx, body)
    ctx.authorize("create_router", target_of(project_id))
    for zone in body.get("availability_zone_hints", []):
        if zone not in ZONES:
            raise NotFound(f"AvailabilityZone {zone} could not be found.", code="AvailabilityZoneNotFound")
    row = model.draft(project_id, body, ctx.now)
    await make_room(tx, project_id, "router")
    await rows.insert(tx, "routers", row)
    return await _gateway(ctx, tx, row, body, "create_router")


async def _gateway(ctx: Context, tx: Transaction, row: Row, body: dict[str, Any], rule: str) -> Row:
    if "external_gateway_info" not in body:
        return row
    info = body["external_gateway_info"] or {}
    target = target_of(row["project_id"])
    authorize_attributes(ctx, rule, {"external_gateway_info": info}, target)
    if not info.get("network_id"):
        return await model.clear_gateway(tx, row, None, ctx.now)
    authorize_attributes(ctx, f"{rule}:external_gateway_info", info, target, {"external_fixed_ips": []})
    network = await load_network(ctx, tx, info["network_id"])
    return await model.set_gateway(tx, row, network, info, ctx.now)


@api.route("PUT", "/v2.0/routers/{router_id}", checks=["update_router"], body=UPDATE)
async def update(ctx: Context, router_id: str) -> Answer:
    """Change a router, its gateway or its extra routes."""
    body = ctx.body["router"]
    async with writing(ctx) as tx:
        row = await _lock(ctx, tx, router_id, "update_router")
        row = await _gateway(ctx, tx, row, body, "update_router")
        changes: Row = {name: body[name] or "" for name in ("name", "description") if name in body}
        if "admin_state_up" in body:
            changes["admin_state_up"] = truth(body["admin_state_up"])
        row = await rows.update(tx, "routers", row, changes, ctx.now)
        if "routes" in body:
            row = await model.set_routes(tx, row, body["routes"] or [], ctx.now)
        shown = await _view(tx, row)
    return Answer({"router": shown})


@api.route("PUT", "/v2.0/routers/{router_id}/add_extraroutes", checks=["add_extraroutes"], body=EXTRA_ROUTES)
async def add_routes(ctx: Context, router_id: str) -> Answer:
    """Add routes to those that the router has."""
    async with writing(ctx) as tx:
        row = await _lock(ctx, tx, router_id, "add_extraroutes")
        routes = [*orjson.loads(row["routes"]), *ctx.body["router"]["routes"]]
        shown = await _view(tx, await model.set_routes(tx, row, routes, ctx.now))
    return Answer({"router": shown})


@api.route("PUT", "/v2.0/routers/{router_id}/remove_extraroutes", checks=["remove_extraroutes"], body=EXTRA_ROUTES)
async def remove_routes(ctx: Context, router_id: str) -> Answer:
    """Take routes away from those that the router has; what it has not is no error."""
    async with writing(ctx) as tx:
        row = await _lock(ctx, tx, router_id, "remove_extraroutes")
        gone = ctx.body["router"]["routes"]
        left = [route for route in orjson.loads(row["routes"]) if route not in gone]
        shown = await _view(tx, await rows.update(tx, "routers", row, {"routes": rows.dumps(left)}, ctx.now))
    return Answer({"router": shown})


@api.route("DELETE", "/v2.0/routers/{router_id}", checks=["delete_router"], status=204)
async def delete(ctx: Context, router_id: str) -> Answer:
    """Delete a router without interfaces."""
    async with writing(ctx) as tx:
        await model.remove(tx, await _lock(ctx, tx, router_id, "delete_router"), ctx.now)
    return Answer()


@api.route("PUT", "/v2.0/routers/{router_id}/add_router_interface", checks=["add_router_interface"], body=INTERFACE)
async def add_interface(ctx: Context, router_id: str) -> Answer:
    """Connect a router to a subnet, by the subnet or by a port in it."""
    async with writing(ctx) as tx:
        router = await _lock(ctx, tx, router_id, "add_router_interface")
        if "subnet_id" in ctx.body:
            subnet, network = await load_subnet(ctx, tx, ctx.body["subnet_id"])
            authorize_use(ctx, router["project_id"], network)
            port = await model.add_subnet(tx, router, subnet, network, ctx.now)
        else:
            await load_port(ctx, tx, ctx.body["port_id"])
            held = await rows.lock(tx, "ports", ctx.body["port_id"])
            if held is None:
                raise port_not_found(ctx.body["port_id"])
            port = await model.add_port(tx, router, (await ports.complete(tx, [held]))[0], ctx.now)
    return Answer(_interface(router, port))


@api.route(
    "PUT", "/v2.0/routers/{router_id}/remove_router_interface", checks=["remove_router_interface"], body=INTERFACE
)
async def remove_interface(ctx: Context, router_id: str) -> Answer:
    """Disconnect a router from a subnet."""
    async with writing(ctx) as tx:
        router = await _lock(ctx, tx, router_id, "remove_router_interface")
        port = _find(router, await model.interfaces(tx, router_id), ctx.body)
        await model.remove_interface(tx, router, port)
    return Answer(_interface(router, port))


def _find(router: Row, interfaces: list[Port], body: dict[str, str]) -> Port:
    for port in interfaces:
        if body.get("port_id") == port.row["id"]:
            return port
        if any(fixed["subnet_id"] == body.get("subnet_id") for fixed in port.fixed_ips):
            return port
    if "subnet_id" in body:
        raise model.interface_not_found(router["id"], body["subnet_id"])
    raise NotFound(
        f"Router {router['id']} does not have an interface with id {body['port_id']}", code="RouterInterfaceNotFound"
    )


def _interface(router: Row, port: Port) -> dict[str, Any]:
    subnet_ids = [fixed["subnet_id"] for fixed in port.fixed_ips]
    return {
        "id": router["id"],
        "project_id": router["project_id"],
        "tenant_id": router["project_id"],
        "port_id": port.row["id"],
        "network_id": port.row["network_id"],
        "subnet_id": subnet_ids[0],
        "subnet_ids": subnet_ids,
        "tags": rows.unpack_tags(router["tags"]),
    }
