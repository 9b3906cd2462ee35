"""Routes of floating IPs. Networked hosts do the address translation."""

from __future__ import annotations

from collections.abc import Mapping

from kilonova import store
from kilonova.http import Context, Response
from kilonova.http.schema import Schema
from kilonova.network import resources
from kilonova.network.api import api
from kilonova.network.authorization import authorize_attributes, policy_target, requested_project, sees_all
from kilonova.network.errors import conflict, floating_ip_not_found, port_not_found
from kilonova.network.floating_ips import model
from kilonova.network.floating_ips.model import FloatingIp
from kilonova.network.floating_ips.views import views
from kilonova.network.listing import Attribute, Listing, select_fields
from kilonova.network.networks.api import load as load_network
from kilonova.network.ports import model as ports
from kilonova.network.ports.api import load as load_port
from kilonova.network.quotas import check_quota
from kilonova.network.resources import CHANGES_CHANNEL
from kilonova.network.schemas import IP_OR_NULL, SHOW_QUERY, UUID, UUID_OR_NULL, create_body, update_body
from kilonova.store import Reader, Transaction

_CHANGEABLE: Schema = {"port_id": UUID_OR_NULL, "fixed_ip_address": IP_OR_NULL}
CREATE = create_body(
    "floatingip",
    "floatingips",
    {**_CHANGEABLE, "floating_network_id": UUID, "floating_ip_address": IP_OR_NULL, "subnet_id": UUID_OR_NULL},
    ("floating_network_id",),
)
UPDATE = update_body("floatingip", _CHANGEABLE)

LISTING = Listing(
    FloatingIp,
    "floatingips",
    {
        "status": Attribute("r.status"),
        "floating_network_id": Attribute("r.floating_network_id"),
        "floating_ip_address": Attribute("r.floating_ip_address"),
        "fixed_ip_address": Attribute("r.fixed_ip_address", nullable=True),
        "port_id": Attribute("r.port_id", nullable=True),
        "router_id": Attribute("r.router_id", nullable=True),
    },
)


@api.route("GET", "/v2.0/floatingips", policy="get_floatingip", query=LISTING.query_schema)
async def index(ctx: Context) -> Response:
    """List the project's floating IPs."""
    found = await LISTING.fetch_own_page(ctx, "get_floatingip")
    return Response(await LISTING.response_body(ctx, await views(ctx, ctx.db, found)))


@api.route("GET", "/v2.0/floatingips/{floatingip_id}", checks=["get_floatingip"], query=SHOW_QUERY)
async def show(ctx: Context, floatingip_id: str) -> Response:
    """Show a floating IP."""
    (shown,) = await views(ctx, ctx.db, [await _load(ctx, ctx.db, floatingip_id)])
    return Response({"floatingip": select_fields(ctx, shown)})


async def _load(ctx: Context, reader: Reader, floatingip_id: str) -> FloatingIp:
    floating = await resources.find(reader, FloatingIp, floatingip_id)
    if floating is None or not ctx.may("get_floatingip", policy_target(floating.project_id)):
        raise floating_ip_not_found(floatingip_id)
    return floating


@api.route("POST", "/v2.0/floatingips", checks=["create_floatingip"], body=CREATE, status=201)
async def create(ctx: Context) -> Response:
    """Create one or several floating IPs, and associate them with ports where the body names them."""
    bodies = ctx.body.get("floatingips") or [ctx.body["floatingip"]]
    try:
        async with ctx.db.transaction() as tx:
            created = [await _create(ctx, tx, body) for body in bodies]
            shown = await views(ctx, tx, created)
            tx.notify(CHANGES_CHANNEL)
    except store.Conflict:
        raise _changed_meanwhile() from None
    return Response({"floatingips": shown} if "floatingips" in ctx.body else {"floatingip": shown[0]})


def _changed_meanwhile() -> Exception:
    return conflict("RetryRequest", "The port or its addresses were changed meanwhile; try again.")


async def _create(ctx: Context, tx: Transaction, body: Mapping[str, str]) -> FloatingIp:
    project_id = requested_project(ctx, body)
    target = policy_target(project_id)
    ctx.authorize("create_floatingip", target)
    authorize_attributes(ctx, "create_floatingip", body, target, {"floating_ip_address": None})
    network = await load_network(ctx, tx, body["floating_network_id"])
    await check_quota(tx, project_id, "floatingip")
    floating = await model.create(tx, ctx.services.address_cursors, project_id, network, body, ctx.now)
    return await _associate(ctx, tx, floating, body) if body.get("port_id") else floating


async def _associate(ctx: Context, tx: Transaction, floating: FloatingIp, body: Mapping[str, str]) -> FloatingIp:
    port = await load_port(ctx, tx, body["port_id"])
    if port.project_id != floating.project_id and not sees_all(ctx, "update_floatingip"):
        raise port_not_found(body["port_id"])
    (details,) = await ports.load_details(tx, [port])
    changes = await model.associate(tx, floating, details, body.get("fixed_ip_address"))
    return await resources.update(tx, floating, changes, ctx.now)


@api.route("PUT", "/v2.0/floatingips/{floatingip_id}", checks=["update_floatingip"], body=UPDATE)
async def update(ctx: Context, floatingip_id: str) -> Response:
    """Associate a floating IP with a port, or disassociate it."""
    body = ctx.body["floatingip"]
    try:
        async with ctx.db.transaction() as tx:
            floating = await _load(ctx, tx, floatingip_id)
            floating = await resources.lock(tx, FloatingIp, floatingip_id) or floating
            ctx.authorize("update_floatingip", policy_target(floating.project_id))
            (shown,) = await views(ctx, tx, [await _update(ctx, tx, floating, body)])
            tx.notify(CHANGES_CHANNEL)
    except store.Conflict:
        raise _changed_meanwhile() from None
    return Response({"floatingip": shown})


async def _update(ctx: Context, tx: Transaction, floating: FloatingIp, body: Mapping[str, str]) -> FloatingIp:
    if body.get("port_id"):
        floating = await _associate(ctx, tx, floating, body)
    elif "port_id" in body:
        floating = await resources.update(tx, floating, model.UNASSOCIATED, ctx.now)
    elif body.get("fixed_ip_address") and floating.port_id:
        floating = await _associate(ctx, tx, floating, {**body, "port_id": floating.port_id})
    if "description" in body:
        floating = await resources.update(tx, floating, {"description": body["description"] or ""}, ctx.now)
    return floating


@api.route("DELETE", "/v2.0/floatingips/{floatingip_id}", checks=["delete_floatingip"], status=204)
async def delete(ctx: Context, floatingip_id: str) -> Response:
    """Delete a floating IP."""
    async with ctx.db.transaction() as tx:
        floating = await _load(ctx, tx, floatingip_id)
        ctx.authorize("delete_floatingip", policy_target(floating.project_id))
        await model.remove(tx, floating)
        tx.notify(CHANGES_CHANNEL)
    return Response()
