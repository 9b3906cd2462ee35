"""Routes of networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova import store
from kilonova.http import Context, Response
from kilonova.http.schema import Schema
from kilonova.network import resources
from kilonova.network.api import api
from kilonova.network.authorization import authorize_attributes, policy_target, requested_project, sees_all
from kilonova.network.availability_zones import check_zone_hints
from kilonova.network.errors import network_not_found
from kilonova.network.listing import Attribute, Listing, Query, select_fields
from kilonova.network.networks import model
from kilonova.network.networks.model import Network
from kilonova.network.quotas import check_quota
from kilonova.network.resources import write_transaction
from kilonova.network.schemas import BOOLEAN, SHOW_QUERY, TEXT, ZONE_HINTS, create_body, update_body
from kilonova.store import Reader

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
        # Heat sends a string. The range depends on the type of the network, so `networks/model.py` checks it.
        "provider:segmentation_id": {"type": ["integer", "string", "null"], "pattern": "^[0-9]{1,8}$"},
        "availability_zone_hints": ZONE_HINTS,
    },
)
UPDATE = update_body("network", _CHANGEABLE)


_DEFAULTS = {"shared": False, "router:external": False, "is_default": False, "port_security_enabled": True}

LISTING = Listing(
    Network,
    "networks",
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
    subnets = await model.subnet_ids(ctx.db, [network.id for network in found])
    return Response(await LISTING.response_body(ctx, (view(ctx, network, subnets[network.id]) for network in found)))


@api.route("GET", "/v2.0/networks/{network_id}", checks=["get_network"], query=SHOW_QUERY)
async def show(ctx: Context, network_id: str) -> Response:
    """Show a network."""
    network = await load(ctx, ctx.db, network_id)
    subnets = await model.subnet_ids(ctx.db, [network_id])
    return Response({"network": select_fields(ctx, view(ctx, network, subnets[network_id]))})


async def load(ctx: Context, reader: Reader, network_id: str) -> Network:
    """The network, or 404 if it is missing or hidden from the caller."""
    network = await resources.find(reader, Network, network_id)
    if network is None or not ctx.may("get_network", policy_target(network.project_id, network)):
        raise network_not_found(network_id)
    return network


@api.route("POST", "/v2.0/networks", checks=["create_network"], body=CREATE, status=201)
async def create(ctx: Context) -> Response:
    """Create one or several networks."""
    networks = [_new_network(ctx, body) for body in ctx.body.get("networks") or [ctx.body["network"]]]
    created: list[Network] = []
    try:
        async with ctx.db.transaction() as tx:
            for network in networks:
                await check_quota(tx, network.project_id, "network")
                created.append(await model.with_segment(tx, network))
                await resources.insert(tx, created[-1])
    except store.Conflict:
        raise model.segment_in_use((created or networks)[-1]) from None
    shown = [view(ctx, network, []) for network in created]
    return Response({"networks": shown} if "networks" in ctx.body else {"network": shown[0]})


def _new_network(ctx: Context, body: Mapping[str, Any]) -> Network:
    project_id = requested_project(ctx, body)
    ctx.authorize("create_network", policy_target(project_id))
    authorize_attributes(ctx, "create_network", body, policy_target(project_id), _DEFAULTS)
    check_zone_hints(body)
    return model.new_network(project_id, body, ctx.now)


@api.route("PUT", "/v2.0/networks/{network_id}", checks=["update_network"], body=UPDATE)
async def update(ctx: Context, network_id: str) -> Response:
    """Change a network."""
    body = ctx.body["network"]
    async with write_transaction(ctx) as tx:
        await load(ctx, tx, network_id)
        network = await resources.lock(tx, Network, network_id)
        if network is None:
            raise network_not_found(network_id)
        ctx.authorize("update_network", policy_target(network.project_id))
        authorize_attributes(ctx, "update_network", body, policy_target(network.project_id))
        network = await model.change(tx, network, body, ctx.now)
        subnets = await model.subnet_ids(tx, [network_id])
    return Response({"network": view(ctx, network, subnets[network_id])})


@api.route("DELETE", "/v2.0/networks/{network_id}", checks=["delete_network"], status=204)
async def delete(ctx: Context, network_id: str) -> Response:
    """Delete a network and its subnets."""
    try:
        async with ctx.db.transaction() as tx:
            network = await load(ctx, tx, network_id)
            ctx.authorize("delete_network", policy_target(network.project_id))
            await model.remove(tx, ctx.services.address_cursors, network_id)
    except store.Conflict:
        # A port was created between the check and the deletion.
        raise model.network_in_use(network_id, []) from None
    return Response()


def view(ctx: Context, network: Network, subnets: list[str]) -> dict[str, object]:
    shown: dict[str, object] = {
        "id": network.id,
        "name": network.name,
        "status": network.status,
        "admin_state_up": network.admin_state_up,
        "shared": network.shared,
        "router:external": network.external,
        "is_default": network.is_default,
        "mtu": network.mtu,
        "port_security_enabled": network.port_security_enabled,
        "subnets": subnets,
        "availability_zone_hints": network.availability_zone_hints,
        "availability_zones": [],
        "ipv4_address_scope": None,
        "ipv6_address_scope": None,
        **resources.standard_view(network),
    }
    if ctx.may("get_network:provider:network_type"):
        shown["provider:network_type"] = network.network_type
        shown["provider:physical_network"] = network.physical_network or None
        shown["provider:segmentation_id"] = network.segmentation_id
    return shown
