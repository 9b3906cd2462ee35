"""/v2.0/networks."""

from __future__ import annotations

from typing import Any

from kilonova import store
from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound
from kilonova.network import rows
from kilonova.network.access import authorize_attributes, project_for, sees_all, target_of, writing
from kilonova.network.api import api
from kilonova.network.errors import network_not_found
from kilonova.network.listing import Attribute, Listing, Query, only
from kilonova.network.networks import model
from kilonova.network.networks.schema import CREATE, UPDATE
from kilonova.network.networks.view import view
from kilonova.network.quotas.model import make_room
from kilonova.network.schema import SHOW_KEYS
from kilonova.network.zones import ZONES
from kilonova.store import Reader, Row

_NO_RIGHTS_NEEDED = {"shared": False, "router:external": False, "is_default": False, "port_security_enabled": True}

LISTING = Listing(
    "networks",
    "networks r",
    {
        "name": Attribute("r.name"),
        "status": Attribute("r.status"),
        "admin_state_up": Attribute("r.admin_state_up", "boolean"),
        "shared": Attribute("r.shared", "boolean"),
        "router:external": Attribute("r.external", "boolean"),
        "is_default": Attribute("r.is_default", "boolean"),
        "mtu": Attribute("r.mtu", "integer"),
        "port_security_enabled": Attribute("r.port_security_enabled", "boolean"),
        "provider:network_type": Attribute("r.network_type", rule="get_network:provider:network_type"),
        "provider:physical_network": Attribute("r.physical_network", rule="get_network:provider:physical_network"),
        "provider:segmentation_id": Attribute(
            "r.segmentation_id", "integer", nullable=True, rule="get_network:provider:segmentation_id"
        ),
    },
)


@api.route("GET", "/v2.0/networks", policy="get_network", query=LISTING.keys)
async def index(ctx: Context) -> Answer:
    """List the networks that the caller may see: the project's own, shared and external ones."""
    query = Query()
    if not sees_all(ctx, "get_network"):
        query.add(f"(r.project_id = {query.arg(ctx.token.project_id)} OR r.shared OR r.external)")
    found = await LISTING.rows(ctx, query)
    subnets = await model.subnet_ids(ctx.db, [row["id"] for row in found])
    return Answer(LISTING.answer(ctx, [view(ctx, row, subnets[row["id"]]) for row in found]))


@api.route("GET", "/v2.0/networks/{network_id}", checks=["get_network"], query=SHOW_KEYS)
async def show(ctx: Context, network_id: str) -> Answer:
    """Show a network."""
    row = await load(ctx, ctx.db, network_id)
    return Answer({"network": only(ctx, view(ctx, row, (await model.subnet_ids(ctx.db, [network_id]))[network_id]))})


async def load(ctx: Context, reader: Reader, network_id: str) -> Row:
    """The network, if it exists and the caller may know that."""
    row = await rows.get(reader, "networks", network_id)
    if row is None or not ctx.may("get_network", target_of(row["project_id"], row)):
        raise network_not_found(network_id)
    return row


@api.route("POST", "/v2.0/networks", checks=["create_network"], body=CREATE, status=201)
async def create(ctx: Context) -> Answer:
    """Create a network, or several at once."""
    drafts = [_draft(ctx, body) for body in ctx.body.get("networks") or [ctx.body["network"]]]
    try:
        async with ctx.db.transaction() as tx:
            for row in drafts:
                await make_room(tx, row["project_id"], "network")
                await model.create(tx, row)
    except store.Conflict:
        raise model.segment_in_use(drafts[-1]) from None
    shown = [view(ctx, row, []) for row in drafts]
    return Answer({"networks": shown} if "networks" in ctx.body else {"network": shown[0]})


def _draft(ctx: Context, body: dict[str, Any]) -> Row:
    project_id = project_for(ctx, body)
    ctx.authorize("create_network", target_of(project_id))
    authorize_attributes(ctx, "create_network", body, target_of(project_id), _NO_RIGHTS_NEEDED)
    for zone in body.get("availability_zone_hints", []):
        if zone not in ZONES:
            raise NotFound(f"AvailabilityZone {zone} could not be found.", code="AvailabilityZoneNotFound")
    return model.draft(project_id, body, ctx.now)


@api.route("PUT", "/v2.0/networks/{network_id}", checks=["update_network"], body=UPDATE)
async def update(ctx: Context, network_id: str) -> Answer:
    """Change a network."""
    body = ctx.body["network"]
    async with writing(ctx) as tx:
        await load(ctx, tx, network_id)
        row = await rows.lock(tx, "networks", network_id)
        if row is None:
            raise network_not_found(network_id)
        ctx.authorize("update_network", target_of(row["project_id"]))
        authorize_attributes(ctx, "update_network", body, target_of(row["project_id"]))
        row = await model.change(tx, row, body, ctx.now)
        subnets = await model.subnet_ids(tx, [network_id])
    return Answer({"network": view(ctx, row, subnets[network_id])})


@api.route("DELETE", "/v2.0/networks/{network_id}", checks=["delete_network"], status=204)
async def delete(ctx: Context, network_id: str) -> Answer:
    """Delete a network and its subnets."""
    try:
        async with ctx.db.transaction() as tx:
            row = await load(ctx, tx, network_id)
            ctx.authorize("delete_network", target_of(row["project_id"]))
            await model.remove(tx, network_id)
    except store.Conflict:
        # A port came in between looking and deleting.
        raise model.network_in_use(network_id, []) from None
    return Answer()
