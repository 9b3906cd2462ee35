"""Proxy of networks (before 2.36). Old clients call the network service with their own token."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers.views import NULLABLE, TEXT
from kilonova.http import Context, Field, Response, View, attribute
from kilonova.http.errors import NotFound
from kilonova.network.client import Network

_NULL_FIELDS = (
    *("bridge", "bridge_interface", "broadcast", "cidr", "cidr_v6", "created_at", "deleted", "deleted_at"),
    *("dhcp_server", "dhcp_start", "dns1", "dns2", "enable_dhcp", "gateway", "gateway_v6", "host", "injected"),
    *("mtu", "multi_host", "netmask", "netmask_v6", "priority", "project_id", "rxtx_base", "share_address"),
    *("updated_at", "vlan", "vpn_private_address", "vpn_public_address", "vpn_public_port"),
)
_COMMON = {"id": attribute("id", TEXT), "label": attribute("name", TEXT)}

api.view(
    View(
        "network of old",
        {**_COMMON, **{name: Field(lambda network, ctx: None, NULLABLE) for name in _NULL_FIELDS}},
    )
)
# A network may have any number of subnets, so `cidr` is the string "None" that Nova shows.
api.view(View("network of project", {**_COMMON, "cidr": Field(lambda network, ctx: "None", TEXT)}))


NETWORKS, OF_PROJECT = "os_compute_api:os-networks:", "os_compute_api:os-tenant-networks:"


@api.route("GET", "/os-networks", policy=NETWORKS + "list", shows=("networks", "network of old", True))
async def index(ctx: Context) -> Response:
    """List networks."""
    found = await ctx.services.network.all_networks(ctx.auth_token)
    return Response({"networks": await ctx.render_all("network of old", found)})


@api.route("GET", "/os-networks/{id}", policy=NETWORKS + "show", shows=("network", "network of old", False))
async def show(ctx: Context, id: str) -> Response:
    """Show a network."""
    return Response({"network": ctx.render("network of old", await _network(ctx, id))})


@api.route("GET", "/os-tenant-networks", policy=OF_PROJECT + "list", shows=("networks", "network of project", True))
async def index_of_project(ctx: Context) -> Response:
    """List the networks that the project may use: its own, shared and external ones."""
    found = await ctx.services.network.all_networks(ctx.auth_token)
    usable = [each for each in found if _is_usable(ctx, each)]
    return Response({"networks": await ctx.render_all("network of project", usable)})


@api.route(
    "GET", "/os-tenant-networks/{id}", policy=OF_PROJECT + "show", shows=("network", "network of project", False)
)
async def show_of_project(ctx: Context, id: str) -> Response:
    """Show a network that the project may use."""
    network = await _network(ctx, id)
    if not _is_usable(ctx, network):
        raise _missing(id)
    return Response({"network": ctx.render("network of project", network)})


async def _network(ctx: Context, network_id: str) -> Network:
    found = await ctx.services.network.network(network_id, ctx.auth_token)
    if found is None:
        raise _missing(network_id)
    return found


def _missing(network_id: str) -> NotFound:
    return NotFound(f"Network {network_id} could not be found.")


def _is_usable(ctx: Context, network: Network) -> bool:
    """Whether the project may use the network. The network service also shows other networks to administrators."""
    return network.shared or network.external or network.project_id == ctx.token.project_id
