"""Routes of floating addresses and their pools: the old ways to the network service, asked in the caller's name."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from kilonova.compute.api import api
from kilonova.compute.floating_ips import views
from kilonova.compute.networks.asking import Item, ask, listed, own
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.pieces import Schema

__all__ = ["views"]

RULE = "os_compute_api:os-floating-ips:"
PATH = "/os-floating-ips"
VIEW = "floating address of old"
CREATE: Schema = {"type": ["object", "null"], "properties": {"pool": {"type": ["string", "null"]}}}


@api.route(
    "GET",
    "/os-floating-ip-pools",
    policy="os_compute_api:os-floating-ip-pools",
    shows=("floating_ip_pools", "floating pool", True),
)
async def index_pools(ctx: Context) -> Answer:
    """List the pools of floating addresses."""
    return Answer({"floating_ip_pools": [ctx.render("floating pool", pool) for pool in await _pools(ctx)]})


@api.route("GET", PATH, policy=RULE + "list", shows=("floating_ips", VIEW, True))
async def index(ctx: Context) -> Answer:
    """List the project's floating addresses."""
    found = await _dressed(ctx, await listed(ctx, "floatingips", **own(ctx)))
    return Answer({"floating_ips": [ctx.render(VIEW, each) for each in found]})


@api.route("GET", PATH + "/{id}", policy=RULE + "show", shows=("floating_ip", VIEW, False))
async def show(ctx: Context, id: str) -> Answer:
    """Show a floating address."""
    return await _answer(ctx, (await ask(ctx, "GET", _path(id)))["floatingip"])


@api.route("POST", PATH, policy=RULE + "create", body=CREATE, shows=("floating_ip", VIEW, False))
async def create(ctx: Context) -> Answer:
    """Take a floating address from a pool."""
    pool = await _pool(ctx, (ctx.body or {}).get("pool"))
    made = await ask(ctx, "POST", "/floatingips", {"floatingip": {"floating_network_id": pool["id"]}})
    return await _answer(ctx, made["floatingip"])


@api.route("DELETE", PATH + "/{id}", policy=RULE + "delete", status=202)
async def delete(ctx: Context, id: str) -> Answer:
    """Give a floating address back, wherever it leads."""
    await ask(ctx, "DELETE", _path(id))
    return Answer()


def _path(floating_id: str) -> str:
    return f"/floatingips/{quote(floating_id, safe='')}"


async def _pools(ctx: Context) -> list[Item]:
    return await listed(ctx, "networks", **{"router:external": "True"})


async def _pool(ctx: Context, asked: str | None) -> Item:
    """The pool of this name or id. Who names none gets the default one, or the only one."""
    known = await _pools(ctx)
    if asked is None:
        known = [pool for pool in known if pool.get("is_default")] or known
    found = [pool for pool in known if asked is None or asked in (pool["id"], pool["name"])]
    if not found:
        raise NotFound(f"Floating IP pool {asked} not found." if asked else "Floating IP pool not found.")
    if len(found) > 1:
        raise BadRequest("Multiple floating IP pools match. Use an ID to be more specific.")
    return found[0]


async def _answer(ctx: Context, floating: Item) -> Answer:
    (shown,) = await _dressed(ctx, [floating])
    return Answer({"floating_ip": ctx.render(VIEW, shown)})


async def _dressed(ctx: Context, found: Sequence[Item]) -> list[Item]:
    """With the name of the pool and the server at the other end."""
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
