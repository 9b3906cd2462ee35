"""Proxy of floating IPs and their pools (before 2.36). Old clients call the network service with their own token."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from kilonova.compute.api import api
from kilonova.compute.network_calls import Item, call, list_items, own_project_filter
from kilonova.compute.servers.views import NULLABLE, TEXT
from kilonova.http import Context, Field, Response, View, col
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.parameter_types import Schema

RULE = "os_compute_api:os-floating-ips:"
PATH = "/os-floating-ips"
VIEW = "floating address of old"
CREATE: Schema = {"type": ["object", "null"], "properties": {"pool": {"type": ["string", "null"]}}}

api.view(View("floating pool", {"name": Field(lambda row, ctx: row["name"] or row["id"], TEXT)}))
api.view(
    View(
        VIEW,
        {
            "id": col("id", TEXT),
            "ip": col("floating_ip_address", TEXT),
            "fixed_ip": col("fixed_ip_address", NULLABLE),
            "pool": col("pool", TEXT),
            "instance_id": col("server_id", NULLABLE),
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
    found = await _with_pools_and_servers(ctx, await list_items(ctx, "floatingips", **own_project_filter(ctx)))
    return Response({"floating_ips": [ctx.render(VIEW, each) for each in found]})


@api.route("GET", PATH + "/{id}", policy=RULE + "show", shows=("floating_ip", VIEW, False))
async def show(ctx: Context, id: str) -> Response:
    """Show a floating IP."""
    return await _answer(ctx, (await call(ctx, "GET", _path(id)))["floatingip"])


@api.route("POST", PATH, policy=RULE + "create", body=CREATE, shows=("floating_ip", VIEW, False))
async def create(ctx: Context) -> Response:
    """Allocate a floating IP from a pool."""
    pool = await _pool(ctx, (ctx.body or {}).get("pool"))
    made = await call(ctx, "POST", "/floatingips", {"floatingip": {"floating_network_id": pool["id"]}})
    return await _answer(ctx, made["floatingip"])


@api.route("DELETE", PATH + "/{id}", policy=RULE + "delete", status=202)
async def delete(ctx: Context, id: str) -> Response:
    """Release a floating IP, even if it is associated."""
    await call(ctx, "DELETE", _path(id))
    return Response()


def _path(floating_id: str) -> str:
    return f"/floatingips/{quote(floating_id, safe='')}"


async def _pools(ctx: Context) -> list[Item]:
    return await list_items(ctx, "networks", **{"router:external": "True"})


async def _pool(ctx: Context, requested: str | None) -> Item:
    """The pool with this name or id; without one, the default pool or the only pool."""
    known = await _pools(ctx)
    if requested is None:
        known = [pool for pool in known if pool.get("is_default")] or known
    found = [pool for pool in known if requested is None or requested in (pool["id"], pool["name"])]
    if not found:
        raise NotFound(f"Floating IP pool {requested} not found." if requested else "Floating IP pool not found.")
    if len(found) > 1:
        raise BadRequest("Multiple floating IP pools match. Use an ID to be more specific.")
    return found[0]


async def _answer(ctx: Context, floating: Item) -> Response:
    (shown,) = await _with_pools_and_servers(ctx, [floating])
    return Response({"floating_ip": ctx.render(VIEW, shown)})


async def _with_pools_and_servers(ctx: Context, found: Sequence[Item]) -> list[Item]:
    """Add the names of pools and the ids of associated servers."""
    network, token = ctx.services.network, ctx.auth_token
    pools = sorted({each["floating_network_id"] for each in found})
    names = {pool["id"]: pool["name"] for pool in await network.networks(pools, token)}
    ports = sorted({each["port_id"] for each in found if each["port_id"]})
    servers = {
        port["id"]: port["device_id"]
        for port in await network.ports(ports, token)
        if port["device_owner"].startswith("compute:")
    }
    return [
        {
            **each,
            "pool": names.get(each["floating_network_id"]) or each["floating_network_id"],
            "server_id": servers.get(each["port_id"]),
        }
        for each in found
    ]
