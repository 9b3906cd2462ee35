"""/v2.0/subnets."""

from __future__ import annotations

from typing import Any

from kilonova import store
from kilonova.http import Answer, Context
from kilonova.network import rows
from kilonova.network.access import CHANGED, project_for, sees_all, target_of, writing
from kilonova.network.api import api
from kilonova.network.errors import subnet_not_found
from kilonova.network.listing import Attribute, Listing, Query, only
from kilonova.network.networks.routes import load as load_network
from kilonova.network.quotas.model import make_room
from kilonova.network.schema import SHOW_KEYS
from kilonova.network.subnets import model
from kilonova.network.subnets.schema import CREATE, UPDATE
from kilonova.network.subnets.view import view
from kilonova.store import Reader, Row, Transaction

LISTING = Listing(
    "subnets",
    "subnets r",
    {
        "name": Attribute("r.name"),
        "network_id": Attribute("r.network_id"),
        "ip_version": Attribute("r.ip_version", "integer"),
        "cidr": Attribute("r.cidr"),
        "gateway_ip": Attribute("r.gateway_ip", nullable=True),
        "enable_dhcp": Attribute("r.enable_dhcp", "boolean"),
        "ipv6_ra_mode": Attribute("r.ipv6_ra_mode", nullable=True),
        "ipv6_address_mode": Attribute("r.ipv6_address_mode", nullable=True),
    },
    {
        "shared": lambda query, values: query.add(_on_network("n.shared", values)),
        "router:external": lambda query, values: query.add(_on_network("n.external", values)),
        # There are no subnet pools, so that every subnet is of none.
        "subnetpool_id": lambda query, values: query.add("1 = 0" if any(values) else "1 = 1"),
    },
)


def _on_network(condition: str, values: list[str]) -> str:
    negated = "" if values[-1].lower() in ("true", "1") else "NOT "
    return f"EXISTS (SELECT 1 FROM networks n WHERE n.id = r.network_id AND {negated}{condition})"


@api.route("GET", "/v2.0/subnets", policy="get_subnet", query=LISTING.keys)
async def index(ctx: Context) -> Answer:
    """List the subnets of the networks that the caller may see."""
    query = Query()
    if not sees_all(ctx, "get_subnet"):
        mine = query.arg(ctx.token.project_id)
        query.add(
            f"(r.project_id = {mine} OR EXISTS (SELECT 1 FROM networks n WHERE n.id = r.network_id "
            f"AND (n.project_id = {mine} OR n.shared OR n.external)))"
        )
    found = await LISTING.rows(ctx, query)
    return Answer(LISTING.answer(ctx, [view(row) for row in found]))


@api.route("GET", "/v2.0/subnets/{subnet_id}", checks=["get_subnet"], query=SHOW_KEYS)
async def show(ctx: Context, subnet_id: str) -> Answer:
    """Show a subnet."""
    row, _ = await load(ctx, ctx.db, subnet_id)
    return Answer({"subnet": only(ctx, view(row))})


async def load(ctx: Context, reader: Reader, subnet_id: str) -> tuple[Row, Row]:
    """The subnet and its network, if the caller may know of them."""
    row = await rows.get(reader, "subnets", subnet_id)
    network = await rows.get(reader, "networks", row["network_id"]) if row else None
    if row is None or network is None or not ctx.may("get_subnet", target_of(row["project_id"], network)):
        raise subnet_not_found(subnet_id)
    return row, network


@api.route("POST", "/v2.0/subnets", checks=["create_subnet"], body=CREATE, status=201)
async def create(ctx: Context) -> Answer:
    """Create a subnet, or several at once."""
    async with writing(ctx) as tx:
        made = [await _make(ctx, tx, body) for body in ctx.body.get("subnets") or [ctx.body["subnet"]]]
    shown = [view(row) for row in made]
    return Answer({"subnets": shown} if "subnets" in ctx.body else {"subnet": shown[0]})


async def _make(ctx: Context, tx: Transaction, body: dict[str, Any]) -> Row:
    network = await load_network(ctx, tx, body["network_id"])
    # A subnet is made by whoever the network belongs to, and belongs to the same project unless said otherwise.
    ctx.authorize("create_subnet", target_of(network["project_id"], network))
    project_id = project_for(ctx, body) if body.keys() & {"project_id", "tenant_id"} else network["project_id"]
    ctx.authorize("create_subnet", target_of(project_id, network))
    row = model.draft(project_id, body, ctx.now)
    await make_room(tx, project_id, "subnet")
    return await model.create(tx, row)


@api.route("PUT", "/v2.0/subnets/{subnet_id}", checks=["update_subnet"], body=UPDATE)
async def update(ctx: Context, subnet_id: str) -> Answer:
    """Change a subnet."""
    async with writing(ctx) as tx:
        _, network = await load(ctx, tx, subnet_id)
        row = await rows.lock(tx, "subnets", subnet_id)
        if row is None:
            raise subnet_not_found(subnet_id)
        ctx.authorize("update_subnet", target_of(row["project_id"], network))
        row = await model.change(tx, row, ctx.body["subnet"], ctx.now)
    return Answer({"subnet": view(row)})


@api.route("DELETE", "/v2.0/subnets/{subnet_id}", checks=["delete_subnet"], status=204)
async def delete(ctx: Context, subnet_id: str) -> Answer:
    """Delete a subnet that no port has an address of."""
    try:
        async with ctx.db.transaction() as tx:
            row, network = await load(ctx, tx, subnet_id)
            ctx.authorize("delete_subnet", target_of(row["project_id"], network))
            await model.remove(tx, subnet_id)
            tx.wake(CHANGED)
    except store.Conflict:
        raise model.subnet_in_use(subnet_id) from None
    return Answer()
