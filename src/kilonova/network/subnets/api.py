"""Routes of subnets."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import to_builtins

from kilonova import store
from kilonova.http import Context, Response
from kilonova.network import resources
from kilonova.network.api import api
from kilonova.network.authorization import policy_target, requested_project, sees_all
from kilonova.network.errors import subnet_not_found
from kilonova.network.listing import Attribute, Listing, Query, select_fields
from kilonova.network.networks.api import load as load_network
from kilonova.network.networks.model import Network
from kilonova.network.quotas import check_quota
from kilonova.network.resources import CHANGES_CHANNEL, write_transaction
from kilonova.network.schemas import SHOW_QUERY
from kilonova.network.subnets import model
from kilonova.network.subnets.model import Subnet
from kilonova.network.subnets.schemas import CREATE, UPDATE
from kilonova.store import Reader, Transaction

LISTING = Listing(
    Subnet,
    "subnets",
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
        # There are no subnet pools: an empty value matches every subnet, any other matches none.
        "subnetpool_id": lambda query, values: query.add("1 = 0" if any(values) else "1 = 1"),
    },
)


def _on_network(condition: str, values: list[str]) -> str:
    negated = "" if values[-1].lower() in ("true", "1") else "NOT "
    return f"EXISTS (SELECT 1 FROM networks n WHERE n.id = r.network_id AND {negated}{condition})"


@api.route("GET", "/v2.0/subnets", policy="get_subnet", query=LISTING.query_schema)
async def index(ctx: Context) -> Response:
    """List the subnets of the networks that the caller may see."""
    query = Query()
    if not sees_all(ctx, "get_subnet"):
        mine = query.arg(ctx.token.project_id)
        query.add(
            f"(r.project_id = {mine} OR EXISTS (SELECT 1 FROM networks n WHERE n.id = r.network_id "
            f"AND (n.project_id = {mine} OR n.shared OR n.external)))"
        )
    found = await LISTING.fetch_page(ctx, query)
    return Response(await LISTING.response_body(ctx, (view(subnet) for subnet in found)))


@api.route("GET", "/v2.0/subnets/{subnet_id}", checks=["get_subnet"], query=SHOW_QUERY)
async def show(ctx: Context, subnet_id: str) -> Response:
    """Show a subnet."""
    subnet, _ = await load(ctx, ctx.db, subnet_id)
    return Response({"subnet": select_fields(ctx, view(subnet))})


async def load(ctx: Context, reader: Reader, subnet_id: str) -> tuple[Subnet, Network]:
    """The subnet and its network, or 404 if they are missing or hidden from the caller."""
    subnet = await resources.find(reader, Subnet, subnet_id)
    network = await resources.find(reader, Network, subnet.network_id) if subnet else None
    if subnet is None or network is None or not ctx.may("get_subnet", policy_target(subnet.project_id, network)):
        raise subnet_not_found(subnet_id)
    return subnet, network


@api.route("POST", "/v2.0/subnets", checks=["create_subnet"], body=CREATE, status=201)
async def create(ctx: Context) -> Response:
    """Create one or several subnets."""
    async with write_transaction(ctx) as tx:
        created = [await _create(ctx, tx, body) for body in ctx.body.get("subnets") or [ctx.body["subnet"]]]
    shown = [view(subnet) for subnet in created]
    return Response({"subnets": shown} if "subnets" in ctx.body else {"subnet": shown[0]})


async def _create(ctx: Context, tx: Transaction, body: Mapping[str, str]) -> Subnet:
    network = await load_network(ctx, tx, body["network_id"])
    # The network's owner creates its subnets. They belong to the same project unless the body names another.
    ctx.authorize("create_subnet", policy_target(network.project_id, network))
    project_id = requested_project(ctx, body) if body.keys() & {"project_id", "tenant_id"} else network.project_id
    ctx.authorize("create_subnet", policy_target(project_id, network))
    subnet = model.new_subnet(project_id, body, ctx.now)
    await check_quota(tx, project_id, "subnet")
    return await model.create(tx, subnet)


@api.route("PUT", "/v2.0/subnets/{subnet_id}", checks=["update_subnet"], body=UPDATE)
async def update(ctx: Context, subnet_id: str) -> Response:
    """Change a subnet."""
    async with write_transaction(ctx) as tx:
        _, network = await load(ctx, tx, subnet_id)
        subnet = await resources.lock(tx, Subnet, subnet_id)
        if subnet is None:
            raise subnet_not_found(subnet_id)
        ctx.authorize("update_subnet", policy_target(subnet.project_id, network))
        subnet = await model.change(tx, subnet, ctx.body["subnet"], ctx.now)
    return Response({"subnet": view(subnet)})


@api.route("DELETE", "/v2.0/subnets/{subnet_id}", checks=["delete_subnet"], status=204)
async def delete(ctx: Context, subnet_id: str) -> Response:
    """Delete a subnet; refused while ports have addresses of it."""
    try:
        async with ctx.db.transaction() as tx:
            subnet, network = await load(ctx, tx, subnet_id)
            ctx.authorize("delete_subnet", policy_target(subnet.project_id, network))
            await model.remove(tx, ctx.services.address_cursors, subnet_id)
            tx.notify(CHANGES_CHANNEL)
    except store.Conflict:
        raise model.subnet_in_use(subnet_id) from None
    return Response()


def view(subnet: Subnet) -> dict[str, object]:
    return {
        "id": subnet.id,
        "name": subnet.name,
        "network_id": subnet.network_id,
        "ip_version": subnet.ip_version,
        "cidr": subnet.cidr,
        "gateway_ip": subnet.gateway_ip,
        "enable_dhcp": subnet.enable_dhcp,
        "ipv6_ra_mode": subnet.ipv6_ra_mode,
        "ipv6_address_mode": subnet.ipv6_address_mode,
        "allocation_pools": to_builtins(subnet.allocation_pools),
        "dns_nameservers": subnet.dns_nameservers,
        "host_routes": to_builtins(subnet.host_routes),
        "subnetpool_id": None,
        "service_types": [],
        **resources.standard_view(subnet),
    }
