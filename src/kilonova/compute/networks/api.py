"""Routes of networks: the old ways to the network service, asked in the caller's name."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.networks import views
from kilonova.compute.networks.asking import Item, listed
from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound

__all__ = ["views"]

NETWORKS, OF_PROJECT = "os_compute_api:os-networks:", "os_compute_api:os-tenant-networks:"


@api.route("GET", "/os-networks", policy=NETWORKS + "list", shows=("networks", "network of old", True))
async def index(ctx: Context) -> Answer:
    """List networks."""
    return Answer({"networks": [ctx.render("network of old", each) for each in await listed(ctx, "networks")]})


@api.route("GET", "/os-networks/{id}", policy=NETWORKS + "show", shows=("network", "network of old", False))
async def show(ctx: Context, id: str) -> Answer:
    """Show a network."""
    return Answer({"network": ctx.render("network of old", await _network(ctx, id))})


@api.route("GET", "/os-tenant-networks", policy=OF_PROJECT + "list", shows=("networks", "network of project", True))
async def index_of_project(ctx: Context) -> Answer:
    """List the networks that the project may use: its own and those that are open to all."""
    found = [each for each in await listed(ctx, "networks") if _is_open(ctx, each)]
    return Answer({"networks": [ctx.render("network of project", each) for each in found]})


@api.route(
    "GET", "/os-tenant-networks/{id}", policy=OF_PROJECT + "show", shows=("network", "network of project", False)
)
async def show_of_project(ctx: Context, id: str) -> Answer:
    """Show a network that the project may use."""
    network = await _network(ctx, id)
    if not _is_open(ctx, network):
        raise _missing(id)
    return Answer({"network": ctx.render("network of project", network)})


async def _network(ctx: Context, network_id: str) -> Item:
    found = await ctx.services.network.network(network_id, ctx.auth_token)
    if found is None:
        raise _missing(network_id)
    return found


def _missing(network_id: str) -> NotFound:
    return NotFound(f"Network {network_id} could not be found.")


def _is_open(ctx: Context, network: Item) -> bool:
    """Administrators see the networks of other projects, too, which are not meant here."""
    return bool(network["shared"] or network["router:external"] or network["project_id"] == ctx.token.project_id)
