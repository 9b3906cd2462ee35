"""Routes of servers: list, show, create and update. Actions and delete are in `actions/`."""

from __future__ import annotations

from collections.abc import Sequence

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.operations import update_metadata
from kilonova.compute.operations.steps import interface_refresh
from kilonova.compute.servers import (
    create,
    listing,
    model,
    pinned_zone,
    requested_destination,
    requested_networks,
    schemas,
    views,
)
from kilonova.compute.servers.server import Server
from kilonova.compute.servers.shown_server import enrich
from kilonova.http import Context, Response
from kilonova.http.pagination import next_link
from kilonova.http.parameter_types import is_true, normalize_address

RULE = "os_compute_api:servers:"


@api.route("GET", "/servers", policy=RULE + "index", query=schemas.LIST, shows=("servers", "server brief", True))
async def index(ctx: Context) -> Response:
    """List servers."""
    found, full = await listing.list_briefly(ctx, all_tenants_rule=RULE + "index:get_all_tenants")
    return await _page(ctx, "/servers", "server brief", found, found[-1].id if full else None)


@api.route(
    "GET", "/servers/detail", policy=RULE + "detail", query=schemas.LIST, shows=("servers", "server detail", True)
)
async def detail(ctx: Context) -> Response:
    """List servers with their details."""
    servers, busy, full = await listing.list_servers(ctx, all_tenants_rule=RULE + "detail:get_all_tenants")
    shown = await enrich(ctx, servers, "server detail", busy)
    return await _page(ctx, "/servers/detail", "server detail", shown, servers[-1].id if full else None)


async def _page(ctx: Context, path: str, view: str, shown: Sequence[object], last: str | None) -> Response:
    """`last` is the marker of the next page."""
    body: dict[str, object] = {"servers": await ctx.render_all(view, shown)}
    if last is not None:
        body["servers_links"] = next_link(ctx, path, last, True)
    return Response(body)


@api.route(
    "POST",
    "/servers",
    policy=RULE + "create",
    checks=[requested_destination.BY_NAME, requested_networks.EXTERNAL],
    body=schemas.CREATE,
    status=202,
    dry_run=True,
)
async def create_servers(ctx: Context) -> Response:
    """Create one or more servers."""
    if dry_run.is_requested(ctx):
        requests = await create.scheduler_requests(ctx)
        return await dry_run.plan_response(
            ctx, {"project_id": ctx.token.project_id, "user_id": ctx.token.user_id}, requests
        )
    made = await create.create(ctx)
    if is_true(ctx.body["server"].get("return_reservation_id", False)):
        return Response({"reservation_id": made.reservation_id})
    server = made.servers[0]
    shown = {
        "id": server.id,
        "links": views.links(server.id, ctx),
        "OS-DCF:diskConfig": server.disk_config,
        "security_groups": [{"name": name} for name in made.groups],
        "adminPass": made.password,
    }
    return Response({"server": shown}, headers={"Location": ctx.url(f"/servers/{server.id}")})


@api.route("GET", "/servers/{server_id}", checks=[RULE + "show"], query={}, shows=("server", "server", False))
async def show(ctx: Context, server_id: str) -> Response:
    """Show a server."""
    server, busy = await model.find_busy(ctx, ctx.db, server_id, rule=RULE + "show")
    return Response({"server": await _render(ctx, server, "server", busy)})


async def _render(ctx: Context, server: Server, view: str, busy: frozenset[str]) -> dict[str, object]:
    found = await enrich(ctx, [server], view, busy)
    if not found:
        raise model.not_found(server.id)
    return ctx.render(view, found[0])


@api.route(
    "PUT",
    "/servers/{server_id}",
    checks=[RULE + "update"],
    body=schemas.UPDATE,
    shows=("server", "server update", False),
)
async def update(ctx: Context, server_id: str) -> Response:
    """Update a server's name, description, host name, access addresses or pinned availability zone."""
    body = ctx.body["server"]
    columns = {_UPDATE_COLUMNS[key]: value or None for key, value in body.items()}
    columns |= {name: normalize_address(columns[name]) for name in ("access_ip_v4", "access_ip_v6") if name in columns}
    async with ctx.db.transaction() as tx:
        server, busy = await model.find_busy(ctx, tx, server_id, rule=RULE + "update", lock=True)
        if "pinned_availability_zone" in body:
            await pinned_zone.check(ctx, tx, server, columns["pinned_zone"])
        if columns != {"pinned_zone": server.pinned_zone}:
            await interface_refresh.begin_rename(tx, server, columns.get("hostname"), ctx.services)
            server = await model.update(tx, server, columns)
            if "name" in columns:
                await update_metadata.begin_update(ctx, tx, server)
    return Response({"server": await _render(ctx, server, "server update", busy)})


_UPDATE_COLUMNS = {
    "name": "name",
    "description": "description",
    "hostname": "hostname",
    "accessIPv4": "access_ip_v4",
    "accessIPv6": "access_ip_v6",
    "OS-DCF:diskConfig": "disk_config",
    "pinned_availability_zone": "pinned_zone",
}
