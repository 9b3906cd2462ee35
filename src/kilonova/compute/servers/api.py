"""Routes of servers and their power actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.operations import stopping, tell_guest
from kilonova.compute.operations.reboot import HardReboot, Reboot
from kilonova.compute.operations.start import Start
from kilonova.compute.operations.stop import Stop
from kilonova.compute.servers import acting, create, deferring, listing, model, pinning, schemas, views
from kilonova.http import Answer, Context
from kilonova.http.pagination import next_link
from kilonova.http.pieces import ANYTHING, address, is_true
from kilonova.store import Row

RULE = "os_compute_api:servers:"


@api.route("GET", "/servers", policy=RULE + "index", query=schemas.LIST, shows=("servers", "server brief", True))
async def index(ctx: Context) -> Answer:
    """List servers."""
    rows, full = await listing.servers(ctx, all_tenants_rule=RULE + "index:get_all_tenants")
    return _page(ctx, "/servers", "server brief", rows, rows[-1]["id"] if full else None)


@api.route(
    "GET", "/servers/detail", policy=RULE + "detail", query=schemas.LIST, shows=("servers", "server detail", True)
)
async def detail(ctx: Context) -> Answer:
    """List servers with their details."""
    rows, full = await listing.servers(ctx, all_tenants_rule=RULE + "detail:get_all_tenants")
    shown = await model.dress(ctx, rows, "server detail")
    return _page(ctx, "/servers/detail", "server detail", shown, rows[-1]["id"] if full else None)


def _page(ctx: Context, path: str, view: str, rows: Sequence[Row], last: str | None) -> Answer:
    """`last` is the server after which the next page begins."""
    body: dict[str, Any] = {"servers": [ctx.render(view, row) for row in rows]}
    if last is not None:
        body["servers_links"] = next_link(ctx, path, last, True)
    return Answer(body)


@api.route("POST", "/servers", policy=RULE + "create", body=schemas.CREATE, status=202, dry_run=True)
async def create_servers(ctx: Context) -> Answer:
    """Create one or more servers."""
    if dry_run.asked(ctx):
        requests = await create.rehearse(ctx)
        return await dry_run.answer(ctx, {"project_id": ctx.token.project_id, "user_id": ctx.token.user_id}, requests)
    made = await create.create(ctx)
    if is_true(ctx.body["server"].get("return_reservation_id", False)):
        return Answer({"reservation_id": made.reservation_id})
    server = made.servers[0]
    shown = {
        "id": server["id"],
        "links": views.links(server, ctx),
        "OS-DCF:diskConfig": server["disk_config"],
        "security_groups": [{"name": name} for name in made.groups],
        "adminPass": made.password,
    }
    return Answer({"server": shown}, headers={"Location": ctx.url(f"/servers/{server['id']}")})


@api.route("GET", "/servers/{server_id}", checks=[RULE + "show"], query={}, shows=("server", "server", False))
async def show(ctx: Context, server_id: str) -> Answer:
    """Show a server."""
    row = await model.find(ctx, ctx.db, server_id, rule=RULE + "show")
    found = await model.dress(ctx, [row], "server")
    if not found:
        raise model.missing(server_id)
    return Answer({"server": ctx.render("server", found[0])})


@api.route(
    "PUT",
    "/servers/{server_id}",
    checks=[RULE + "update"],
    body=schemas.UPDATE,
    shows=("server", "server update", False),
)
async def update(ctx: Context, server_id: str) -> Answer:
    """Rename a server, or change its description, host name, access addresses or pin."""
    body = ctx.body["server"]
    columns = {_UPDATE_COLUMNS[key]: value or None for key, value in body.items()}
    columns |= {name: address(columns[name]) for name in ("access_ip_v4", "access_ip_v6") if name in columns}
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, server_id, rule=RULE + "update", lock=True)
        if "pinned_availability_zone" in body:
            await pinning.check(ctx, tx, row, columns["pinned_zone"])
        if columns != {"pinned_zone": row["pinned_zone"]}:
            columns["updated_at"] = ctx.now
            row.update(columns)
            changes = ", ".join(f"{column} = ${place}" for place, column in enumerate(columns, 2))
            await tx.execute(f"UPDATE servers SET {changes} WHERE id = $1", server_id, *columns.values())
            if "name" in columns:
                await tell_guest.begin_telling(ctx, tx, row)
    await model.dress(ctx, [row], "server update")
    return Answer({"server": ctx.render("server update", row)})


_UPDATE_COLUMNS = {
    "name": "name",
    "description": "description",
    "hostname": "hostname",
    "accessIPv4": "access_ip_v4",
    "accessIPv6": "access_ip_v6",
    "OS-DCF:diskConfig": "disk_config",
    "pinned_availability_zone": "pinned_zone",
}


@api.route("DELETE", "/servers/{server_id}", checks=[RULE + "delete"], status=204)
async def delete(ctx: Context, server_id: str) -> Answer:
    """Delete a server, whatever else is happening to it; if so configured, only for a while."""
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, server_id, rule=RULE + "delete", lock=True)
        acting.check_unlocked(ctx, row)
        await deferring.delete(ctx, tx, row)
    return Answer()


# Power actions


@api.action("os-start", body=ANYTHING, checks=["os_compute_api:servers:start"], status=202)
async def start(ctx: Context, server_id: str) -> Answer:
    """Start a stopped server."""
    return await acting.act(ctx, server_id, Start, rule=RULE + "start", transition="os-start")


@api.action("os-stop", body=ANYTHING, checks=["os_compute_api:servers:stop"], status=202)
async def stop(ctx: Context, server_id: str) -> Answer:
    """Stop a running server."""
    params_of = stopping.params_of
    return await acting.act(ctx, server_id, Stop, rule=RULE + "stop", transition="os-stop", params_of=params_of)


@api.action("reboot", body=schemas.REBOOT, checks=["os_compute_api:servers:reboot"], status=202)
async def reboot(ctx: Context, server_id: str) -> Answer:
    """Reboot a server, softly through its system or by power."""
    kind = ctx.body["reboot"]["type"].upper()
    operation = HardReboot if kind == "HARD" else Reboot
    return await acting.act(ctx, server_id, operation, rule=RULE + "reboot", transition=f"reboot {kind}")
