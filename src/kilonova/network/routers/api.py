"""Routes of routers. Networked hosts do the routing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import convert

from kilonova.http import Context, Response
from kilonova.http.errors import NotFound
from kilonova.network import resources
from kilonova.network.api import api
from kilonova.network.authorization import authorize_attributes, authorize_network_use, policy_target, requested_project
from kilonova.network.availability_zones import check_zone_hints
from kilonova.network.errors import port_not_found, router_not_found
from kilonova.network.listing import Attribute, Listing, select_fields
from kilonova.network.networks.api import load as load_network
from kilonova.network.ports import model as ports
from kilonova.network.ports.api import load as load_port
from kilonova.network.ports.model import Port, PortDetails
from kilonova.network.quotas import check_quota
from kilonova.network.resources import write_transaction
from kilonova.network.routers import model
from kilonova.network.routers.model import Router
from kilonova.network.routers.schemas import CREATE, EXTRA_ROUTES, INTERFACE, UPDATE
from kilonova.network.routers.views import view
from kilonova.network.schemas import SHOW_QUERY, to_bool
from kilonova.network.subnets.api import load as load_subnet
from kilonova.network.subnets.model import Route
from kilonova.store import Reader, Transaction

LISTING = Listing(
    Router,
    "routers",
    {
        "name": Attribute("r.name"),
        "status": Attribute("r.status"),
        "admin_state_up": Attribute("r.admin_state_up", "boolean"),
    },
)


@api.route("GET", "/v2.0/routers", policy="get_router", query=LISTING.query_schema)
async def index(ctx: Context) -> Response:
    """List the project's routers."""
    found = await LISTING.fetch_own_page(ctx, "get_router")
    gateways = await model.gateways(ctx.db, found)
    return Response(
        await LISTING.response_body(ctx, (view(each, gateways.get(each.gateway_port_id)) for each in found))
    )


@api.route("GET", "/v2.0/routers/{router_id}", checks=["get_router"], query=SHOW_QUERY)
async def show(ctx: Context, router_id: str) -> Response:
    """Show a router."""
    return Response({"router": select_fields(ctx, await _view(ctx.db, await _load(ctx, ctx.db, router_id)))})


async def _view(reader: Reader, router: Router) -> dict[str, object]:
    return view(router, (await model.gateways(reader, [router])).get(router.gateway_port_id))


async def _load(ctx: Context, reader: Reader, router_id: str) -> Router:
    router = await resources.find(reader, Router, router_id)
    if router is None or not ctx.may("get_router", policy_target(router.project_id)):
        raise router_not_found(router_id)
    return router


async def _lock(ctx: Context, tx: Transaction, router_id: str, rule: str) -> Router:
    await _load(ctx, tx, router_id)
    router = await resources.lock(tx, Router, router_id)
    if router is None:
        raise router_not_found(router_id)
    ctx.authorize(rule, policy_target(router.project_id))
    return router


@api.route("POST", "/v2.0/routers", checks=["create_router"], body=CREATE, status=201)
async def create(ctx: Context) -> Response:
    """Create one or several routers."""
    shown = []
    async with write_transaction(ctx) as tx:
        for body in ctx.body.get("routers") or [ctx.body["router"]]:
            shown.append(await _view(tx, await _create(ctx, tx, body)))
    return Response({"routers": shown} if "routers" in ctx.body else {"router": shown[0]})


async def _create(ctx: Context, tx: Transaction, body: Mapping[str, Any]) -> Router:
    project_id = requested_project(ctx, body)
    ctx.authorize("create_router", policy_target(project_id))
    check_zone_hints(body)
    router = model.new_router(project_id, body, ctx.now)
    await check_quota(tx, project_id, "router")
    await resources.insert(tx, router)
    return await _update_gateway(ctx, tx, router, body, "create_router")


async def _update_gateway(ctx: Context, tx: Transaction, router: Router, body: Mapping[str, Any], rule: str) -> Router:
    if "external_gateway_info" not in body:
        return router
    info = body["external_gateway_info"] or {}
    target = policy_target(router.project_id)
    authorize_attributes(ctx, rule, {"external_gateway_info": info}, target)
    if not info.get("network_id"):
        return await model.clear_gateway(tx, router, None, ctx.now)
    authorize_attributes(ctx, f"{rule}:external_gateway_info", info, target, {"external_fixed_ips": []})
    network = await load_network(ctx, tx, info["network_id"])
    return await model.set_gateway(tx, ctx.services.address_cursors, router, network, info, ctx.now)


@api.route("PUT", "/v2.0/routers/{router_id}", checks=["update_router"], body=UPDATE)
async def update(ctx: Context, router_id: str) -> Response:
    """Change a router, its gateway or its extra routes."""
    body = ctx.body["router"]
    async with write_transaction(ctx) as tx:
        router = await _lock(ctx, tx, router_id, "update_router")
        router = await _update_gateway(ctx, tx, router, body, "update_router")
        changes: dict[str, object] = {name: body[name] or "" for name in ("name", "description") if name in body}
        if "admin_state_up" in body:
            changes["admin_state_up"] = to_bool(body["admin_state_up"])
        router = await resources.update(tx, router, changes, ctx.now)
        if "routes" in body:
            router = await model.set_routes(tx, router, convert(body["routes"] or [], list[Route]), ctx.now)
        shown = await _view(tx, router)
    return Response({"router": shown})


@api.route("PUT", "/v2.0/routers/{router_id}/add_extraroutes", checks=["add_extraroutes"], body=EXTRA_ROUTES)
async def add_routes(ctx: Context, router_id: str) -> Response:
    """Add extra routes to a router."""
    async with write_transaction(ctx) as tx:
        router = await _lock(ctx, tx, router_id, "add_extraroutes")
        routes = [*router.routes, *convert(ctx.body["router"]["routes"], list[Route])]
        shown = await _view(tx, await model.set_routes(tx, router, routes, ctx.now))
    return Response({"router": shown})


@api.route("PUT", "/v2.0/routers/{router_id}/remove_extraroutes", checks=["remove_extraroutes"], body=EXTRA_ROUTES)
async def remove_routes(ctx: Context, router_id: str) -> Response:
    """Remove extra routes from a router; missing routes are no error."""
    async with write_transaction(ctx) as tx:
        router = await _lock(ctx, tx, router_id, "remove_extraroutes")
        removed = convert(ctx.body["router"]["routes"], list[Route])
        routes = [route for route in router.routes if route not in removed]
        shown = await _view(tx, await resources.update(tx, router, {"routes": routes}, ctx.now))
    return Response({"router": shown})


@api.route("DELETE", "/v2.0/routers/{router_id}", checks=["delete_router"], status=204)
async def delete(ctx: Context, router_id: str) -> Response:
    """Delete a router; refused while it has interfaces."""
    async with write_transaction(ctx) as tx:
        await model.remove(tx, await _lock(ctx, tx, router_id, "delete_router"), ctx.now)
    return Response()


@api.route("PUT", "/v2.0/routers/{router_id}/add_router_interface", checks=["add_router_interface"], body=INTERFACE)
async def add_interface(ctx: Context, router_id: str) -> Response:
    """Add an interface to a router: on a subnet, or an existing port."""
    async with write_transaction(ctx) as tx:
        router = await _lock(ctx, tx, router_id, "add_router_interface")
        if "subnet_id" in ctx.body:
            subnet, network = await load_subnet(ctx, tx, ctx.body["subnet_id"])
            authorize_network_use(ctx, router.project_id, network)
            port = await model.add_subnet(tx, ctx.services.address_cursors, router, subnet, network, ctx.now)
        else:
            await load_port(ctx, tx, ctx.body["port_id"])
            held = await resources.lock(tx, Port, ctx.body["port_id"])
            if held is None:
                raise port_not_found(ctx.body["port_id"])
            port = await model.add_port(tx, router, (await ports.load_details(tx, [held]))[0], ctx.now)
    return Response(_interface_view(router, port))


@api.route(
    "PUT", "/v2.0/routers/{router_id}/remove_router_interface", checks=["remove_router_interface"], body=INTERFACE
)
async def remove_interface(ctx: Context, router_id: str) -> Response:
    """Remove an interface from a router."""
    async with write_transaction(ctx) as tx:
        router = await _lock(ctx, tx, router_id, "remove_router_interface")
        port = _find_interface(router, await model.interfaces(tx, router_id), ctx.body)
        await model.remove_interface(tx, router, port)
    return Response(_interface_view(router, port))


def _find_interface(router: Router, interfaces: Sequence[PortDetails], body: Mapping[str, str]) -> PortDetails:
    for details in interfaces:
        if body.get("port_id") == details.port.id:
            return details
        if any(fixed.subnet_id == body.get("subnet_id") for fixed in details.fixed_ips):
            return details
    if "subnet_id" in body:
        raise model.interface_not_found(router.id, body["subnet_id"])
    raise NotFound(
        f"Router {router.id} does not have an interface with id {body['port_id']}", code="RouterInterfaceNotFound"
    )


def _interface_view(router: Router, details: PortDetails) -> dict[str, object]:
    subnet_ids = [fixed.subnet_id for fixed in details.fixed_ips]
    return {
        "id": router.id,
        "project_id": router.project_id,
        "tenant_id": router.project_id,
        "port_id": details.port.id,
        "network_id": details.port.network_id,
        "subnet_id": subnet_ids[0],
        "subnet_ids": subnet_ids,
        "tags": resources.unpack_tags(router.tags),
    }
