"""Proxy of floating IPs and their pools (before 2.36). Old clients call the network service with their own token."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from kilonova.compute.api import api
from kilonova.compute.network_calls import network_errors
from kilonova.compute.servers.views import NULLABLE, TEXT
from kilonova.http import Context, Field, Response, View, attribute
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.parameter_types import Schema
from kilonova.network.client import FloatingIp, Network

RULE = "os_compute_api:os-floating-ips:"
PATH = "/os-floating-ips"
VIEW = "floating address of old"
CREATE: Schema = {"type": ["object", "null"], "properties": {"pool": {"type": ["string", "null"]}}}


class ShownFloatingIp(Struct, frozen=True):
    """A floating IP with the name of its pool, and the id of the associated server."""

    id: str
    address: str
    fixed_address: str | None
    pool: str
    server_id: str | None


api.view(View("floating pool", {"name": Field(lambda network, ctx: network.name or network.id, TEXT)}))
api.view(
    View(
        VIEW,
        {
            "id": attribute("id", TEXT),
            "ip": attribute("address", TEXT),
            "fixed_ip": attribute("fixed_address", NULLABLE),
            "pool": attribute("pool", TEXT),
            "instance_id": attribute("server_id", NULLABLE),
        },
    )
)


@api.route(
    "GET",
    "/os-floating-ip-pools",
    policy="os_compute_api:os-floating-ip-pools",
    shows=("floating_ip_pools", "floating pool", True),
)
async def index_pools(ctx: Context) -> Response:
    """List floating IP pools."""
    return Response({"floating_ip_pools": [ctx.render("floating pool", pool) for pool in await _pools(ctx)]})


@api.route("GET", PATH, policy=RULE + "list", shows=("floating_ips", VIEW, True))
async def index(ctx: Context) -> Response:
    """List the project's floating IPs."""
    known = await ctx.services.network.floating_ips(ctx.token.project_id, ctx.auth_token)
    found = await _with_pools_and_servers(ctx, known)
    return Response({"floating_ips": await ctx.render_all(VIEW, found)})


@api.route("GET", PATH + "/{id}", policy=RULE + "show", shows=("floating_ip", VIEW, False))
async def show(ctx: Context, id: str) -> Response:
    """Show a floating IP."""
    with network_errors():
        found = await ctx.services.network.floating_ip(id, ctx.auth_token)
    return await _answer(ctx, found)


@api.route("POST", PATH, policy=RULE + "create", body=CREATE, shows=("floating_ip", VIEW, False))
async def create(ctx: Context) -> Response:
    """Allocate a floating IP from a pool."""
    pool = await _pool(ctx, (ctx.body or {}).get("pool"))
    with network_errors():
        created = await ctx.services.network.create_floating_ip(pool.id, ctx.auth_token)
    return await _answer(ctx, created)


@api.route("DELETE", PATH + "/{id}", policy=RULE + "delete", status=202)
async def delete(ctx: Context, id: str) -> Response:
    """Release a floating IP, even if it is associated."""
    with network_errors():
        await ctx.services.network.delete_floating_ip(id, ctx.auth_token)
    return Response()


async def _pools(ctx: Context) -> list[Network]:
    return await ctx.services.network.external_networks(ctx.auth_token)


async def _pool(ctx: Context, requested: str | None) -> Network:
    """The pool with this name or id; without one, the default pool or the only pool."""
    known = await _pools(ctx)
    if requested is None:
        known = [pool for pool in known if pool.is_default] or known
    found = [pool for pool in known if requested is None or requested in (pool.id, pool.name)]
    if not found:
        raise NotFound(f"Floating IP pool {requested} not found." if requested else "Floating IP pool not found.")
    if len(found) > 1:
        raise BadRequest("Multiple floating IP pools match. Use an ID to be more specific.")
    return found[0]


async def _answer(ctx: Context, floating: FloatingIp) -> Response:
    (shown,) = await _with_pools_and_servers(ctx, [floating])
    return Response({"floating_ip": ctx.render(VIEW, shown)})


async def _with_pools_and_servers(ctx: Context, found: Sequence[FloatingIp]) -> list[ShownFloatingIp]:
    """Add the names of pools and the ids of associated servers."""
    network, token = ctx.services.network, ctx.auth_token
    pools = sorted({each.floating_network_id for each in found})
    names = {pool.id: pool.name for pool in await network.networks(pools, token)}
    ports = sorted({each.port_id for each in found if each.port_id})
    servers = {
        port.id: port.device_id
        for port in await network.ports(ports, token)
        if port.device_owner.startswith("compute:")
    }
    return [
        ShownFloatingIp(
            each.id,
            each.floating_ip_address,
            each.fixed_ip_address,
            pool=names.get(each.floating_network_id) or each.floating_network_id,
            server_id=servers.get(each.port_id or ""),
        )
        for each in found
    ]
