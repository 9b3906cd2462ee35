"""/v2.0/floatingips. Where they lead is kept as a record; no packet passes here."""

from __future__ import annotations

from typing import Any

from kilonova import store
from kilonova.http import Answer, Context
from kilonova.network import rows
from kilonova.network.access import CHANGED, authorize_attributes, project_for, sees_all, target_of
from kilonova.network.api import api
from kilonova.network.errors import conflict, floating_ip_not_found, port_not_found
from kilonova.network.floatingips import model
from kilonova.network.floatingips.schema import CREATE, UPDATE
from kilonova.network.listing import Attribute, Listing, Query, only
from kilonova.network.networks.routes import load as load_network
from kilonova.network.ports import model as ports
from kilonova.network.ports.routes import load as load_port
from kilonova.network.quotas.model import make_room
from kilonova.network.schema import SHOW_KEYS
from kilonova.store import Reader, Row, Transaction

LISTING = Listing(
    "floatingips",
    "floating_ips r",
    {
        "status": Attribute("r.status"),
        "floating_network_id": Attribute("r.floating_network_id"),
        "floating_ip_address": Attribute("r.floating_ip_address"),
        "fixed_ip_address": Attribute("r.fixed_ip_address", nullable=True),
        "port_id": Attribute("r.port_id", nullable=True),
        "router_id": Attribute("r.router_id", nullable=True),
    },
)


@api.route("GET", "/v2.0/floatingips", policy="get_floatingip", query=LISTING.keys)
async def index(ctx: Context) -> Answer:
    """List the project's floating addresses."""
    query = Query()
    if not sees_all(ctx, "get_floatingip"):
        query.add(f"r.project_id = {query.arg(ctx.token.project_id)}")
    found = await LISTING.rows(ctx, query)
    return Answer(LISTING.answer(ctx, [model.view(row) for row in found]))


@api.route("GET", "/v2.0/floatingips/{floatingip_id}", checks=["get_floatingip"], query=SHOW_KEYS)
async def show(ctx: Context, floatingip_id: str) -> Answer:
    """Show a floating address."""
    return Answer({"floatingip": only(ctx, model.view(await _load(ctx, ctx.db, floatingip_id)))})


async def _load(ctx: Context, reader: Reader, floatingip_id: str) -> Row:
    row = await rows.get(reader, "floating_ips", floatingip_id)
    if row is None or not ctx.may("get_floatingip", target_of(row["project_id"])):
        raise floating_ip_not_found(floatingip_id)
    return row


@api.route("POST", "/v2.0/floatingips", checks=["create_floatingip"], body=CREATE, status=201)
async def create(ctx: Context) -> Answer:
    """Take a floating address from an external network, and lead it to a port if one is named."""
    bodies = ctx.body.get("floatingips") or [ctx.body["floatingip"]]
    try:
        async with ctx.db.transaction() as tx:
            made = [await _make(ctx, tx, body) for body in bodies]
            tx.wake(CHANGED)
    except store.Conflict:
        raise _raced() from None
    shown = [model.view(row) for row in made]
    return Answer({"floatingips": shown} if "floatingips" in ctx.body else {"floatingip": shown[0]})


def _raced() -> Exception:
    return conflict("RetryRequest", "The port or its addresses were changed just now; try again.")


async def _make(ctx: Context, tx: Transaction, body: dict[str, Any]) -> Row:
    project_id = project_for(ctx, body)
    target = target_of(project_id)
    ctx.authorize("create_floatingip", target)
    authorize_attributes(ctx, "create_floatingip", body, target, {"floating_ip_address": None})
    network = await load_network(ctx, tx, body["floating_network_id"])
    await make_room(tx, project_id, "floatingip")
    row = await model.create(tx, project_id, network, body, ctx.now)
    return await _lead(ctx, tx, row, body) if body.get("port_id") else row


async def _lead(ctx: Context, tx: Transaction, row: Row, body: dict[str, Any]) -> Row:
    port = await load_port(ctx, tx, body["port_id"])
    if port["project_id"] != row["project_id"] and not sees_all(ctx, "update_floatingip"):
        raise port_not_found(body["port_id"])
    changes = await model.associate(tx, row, (await ports.complete(tx, [port]))[0], body.get("fixed_ip_address"))
    return await rows.update(tx, "floating_ips", row, changes, ctx.now)


@api.route("PUT", "/v2.0/floatingips/{floatingip_id}", checks=["update_floatingip"], body=UPDATE)
async def update(ctx: Context, floatingip_id: str) -> Answer:
    """Lead a floating address to a port, or nowhere."""
    body = ctx.body["floatingip"]
    try:
        async with ctx.db.transaction() as tx:
            row = await _load(ctx, tx, floatingip_id)
            row = await rows.lock(tx, "floating_ips", floatingip_id) or row
            ctx.authorize("update_floatingip", target_of(row["project_id"]))
            row = await _change(ctx, tx, row, body)
            tx.wake(CHANGED)
    except store.Conflict:
        raise _raced() from None
    return Answer({"floatingip": model.view(row)})


async def _change(ctx: Context, tx: Transaction, row: Row, body: dict[str, Any]) -> Row:
    if body.get("port_id"):
        row = await _lead(ctx, tx, row, body)
    elif "port_id" in body:
        row = await rows.update(tx, "floating_ips", row, dict(model.NOWHERE), ctx.now)
    elif body.get("fixed_ip_address") and row["port_id"]:
        row = await _lead(ctx, tx, row, {**body, "port_id": row["port_id"]})
    if "description" in body:
        row = await rows.update(tx, "floating_ips", row, {"description": body["description"] or ""}, ctx.now)
    return row


@api.route("DELETE", "/v2.0/floatingips/{floatingip_id}", checks=["delete_floatingip"], status=204)
async def delete(ctx: Context, floatingip_id: str) -> Answer:
    """Give a floating address back."""
    async with ctx.db.transaction() as tx:
        row = await _load(ctx, tx, floatingip_id)
        ctx.authorize("delete_floatingip", target_of(row["project_id"]))
        await model.remove(tx, row)
        tx.wake(CHANGED)
    return Answer()
