"""Routes of networks."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova import store
from kilonova.http import Context, Response
from kilonova.network import resources
from kilonova.network.api import api
from kilonova.network.authorization import authorize_attributes, policy_target, requested_project, sees_all
from kilonova.network.availability_zones import check_zone_hints
from kilonova.network.errors import network_not_found
from kilonova.network.listing import Attribute, Listing, Query, select_fields
from kilonova.network.networks import model
from kilonova.network.quotas import check_quota
from kilonova.network.resources import write_transaction
from kilonova.network.schemas import BOOLEAN, SHOW_QUERY, TEXT, ZONE_HINTS, Schema, create_body, update_body
from kilonova.store import Reader, Row

TYPES = ("local", "flat", "vlan", "vxlan", "gre", "geneve")
MTU: Schema = {"type": "integer", "minimum": 0, "maximum": 65535}

_CHANGEABLE: Schema = {
    "name": TEXT,
    "admin_state_up": BOOLEAN,
    "shared": BOOLEAN,
    "router:external": BOOLEAN,
    "is_default": BOOLEAN,
    "mtu": MTU,
    "port_security_enabled": BOOLEAN,
}

CREATE = create_body(
    "network",
    "networks",
    {
        **_CHANGEABLE,
        "provider:network_type": {"enum": [*TYPES, None]},
        "provider:physical_network": {"type": ["string", "null"], "maxLength": 255},
        "provider:segmentation_id": {"type": ["integer", "null"], "minimum": 1, "maximum": 2**24 - 1},
        "availability_zone_hints": ZONE_HINTS,
    },
)
UPDATE = update_body("network", _CHANGEABLE)


_DEFAULTS = {"shared": False, "router:external": False, "is_default": False, "port_security_enabled": True}

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


@api.route("GET", "/v2.0/networks", policy="get_network", query=LISTING.query_schema)
async def index(ctx: Context) -> Response:
    """List the networks that the caller may see: the project's own, shared and external ones."""
    query = Query()
    if not sees_all(ctx, "get_network"):
        query.add(f"(r.project_id = {query.arg(ctx.token.project_id)} OR r.shared OR r.external)")
    found = await LISTING.fetch_page(ctx, query)
    subnets = await model.subnet_ids(ctx.db, [row["id"] for row in found])
    return Response(LISTING.response_body(ctx, [view(ctx, row, subnets[row["id"]]) for row in found]))


@api.route("GET", "/v2.0/networks/{network_id}", checks=["get_network"], query=SHOW_QUERY)
async def show(ctx: Context, network_id: str) -> Response:
    """Show a network."""
    row = await load(ctx, ctx.db, network_id)
    return Response(
        {"network": select_fields(ctx, view(ctx, row, (await model.subnet_ids(ctx.db, [network_id]))[network_id]))}
    )


async def load(ctx: Context, reader: Reader, network_id: str) -> Row:
    """The network, or 404 if it is missing or hidden from the caller."""
    row = await resources.get(reader, "networks", network_id)
    if row is None or not ctx.may("get_network", policy_target(row["project_id"], row)):
        raise network_not_found(network_id)
    return row


@api.route("POST", "/v2.0/networks", checks=["create_network"], body=CREATE, status=201)
async def create(ctx: Context) -> Response:
    """Create one or several networks."""
    rows = [_new_row(ctx, body) for body in ctx.body.get("networks") or [ctx.body["network"]]]
    try:
        async with ctx.db.transaction() as tx:
            for row in rows:
                await check_quota(tx, row["project_id"], "network")
                await model.create(tx, row)
    except store.Conflict:
        raise model.segment_in_use(rows[-1]) from None
    shown = [view(ctx, row, []) for row in rows]
    return Response({"networks": shown} if "networks" in ctx.body else {"network": shown[0]})


def _new_row(ctx: Context, body: dict[str, Any]) -> Row:
    project_id = requested_project(ctx, body)
    ctx.authorize("create_network", policy_target(project_id))
    authorize_attributes(ctx, "create_network", body, policy_target(project_id), _DEFAULTS)
    check_zone_hints(body)
    return model.new_row(project_id, body, ctx.now)


@api.route("PUT", "/v2.0/networks/{network_id}", checks=["update_network"], body=UPDATE)
async def update(ctx: Context, network_id: str) -> Response:
    """Change a network."""
    body = ctx.body["network"]
    async with write_transaction(ctx) as tx:
        await load(ctx, tx, network_id)
        row = await resources.lock(tx, "networks", network_id)
        if row is None:
            raise network_not_found(network_id)
        ctx.authorize("update_network", policy_target(row["project_id"]))
        authorize_attributes(ctx, "update_network", body, policy_target(row["project_id"]))
        row = await model.change(tx, row, body, ctx.now)
        subnets = await model.subnet_ids(tx, [network_id])
    return Response({"network": view(ctx, row, subnets[network_id])})


@api.route("DELETE", "/v2.0/networks/{network_id}", checks=["delete_network"], status=204)
async def delete(ctx: Context, network_id: str) -> Response:
    """Delete a network and its subnets."""
    try:
        async with ctx.db.transaction() as tx:
            row = await load(ctx, tx, network_id)
            ctx.authorize("delete_network", policy_target(row["project_id"]))
            await model.remove(tx, network_id)
    except store.Conflict:
        # A port was created between the check and the deletion.
        raise model.network_in_use(network_id, []) from None
    return Response()


def view(ctx: Context, row: Row, subnets: list[str]) -> dict[str, Any]:
    shown = {
        "id": row["id"],
        "name": row["name"],
        "status": row["status"],
        "admin_state_up": row["admin_state_up"],
        "shared": row["shared"],
        "router:external": row["external"],
        "is_default": row["is_default"],
        "mtu": row["mtu"],
        "port_security_enabled": row["port_security_enabled"],
        "subnets": subnets,
        "availability_zone_hints": orjson.loads(row["availability_zone_hints"]),
        "availability_zones": [],
        "ipv4_address_scope": None,
        "ipv6_address_scope": None,
        **resources.standard_view(row),
    }
    if ctx.may("get_network:provider:network_type"):
        shown["provider:network_type"] = row["network_type"]
        shown["provider:physical_network"] = row["physical_network"] or None
        shown["provider:segmentation_id"] = row["segmentation_id"]
    return shown
