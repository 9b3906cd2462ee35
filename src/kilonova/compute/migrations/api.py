"""Routes that show migrations: those of all servers, and the live ones that a server has under way."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.migrations import listing, schemas, views
from kilonova.compute.servers import model
from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound
from kilonova.http.pagination import next_link

__all__ = ["views"]

INDEX = "os_compute_api:os-migrations:index"
OF_SERVER = "os_compute_api:servers:migrations:"


@api.route("GET", "/os-migrations", policy=INDEX, query=schemas.LIST, shows=("migrations", "migration", True))
async def index(ctx: Context) -> Answer:
    """List migrations."""
    rows, full = await listing.migrations(ctx)
    await listing.dress(ctx.db, rows, hosts=ctx.may(listing.HOSTS))
    shown: dict[str, Any] = {"migrations": [ctx.render("migration", row) for row in rows]}
    if full:
        shown["migrations_links"] = next_link(ctx, "/os-migrations", rows[-1]["operation_id"], full)
    return Answer(shown)


@api.route(
    "GET",
    "/servers/{server_id}/migrations",
    checks=[OF_SERVER + "index"],
    query={},
    shows=("migrations", "server migration", True),
)
async def of_server(ctx: Context, server_id: str) -> Answer:
    """List the live migrations of a server that are under way."""
    server = await model.find(ctx, ctx.db, server_id, rule=OF_SERVER + "index")
    rows = await listing.in_progress(ctx.db, server_id)
    await listing.dress(ctx.db, rows, hosts=ctx.may(OF_SERVER + "index:host", model.target(server)))
    return Answer({"migrations": [ctx.render("server migration", row) for row in rows]})


@api.route(
    "GET",
    "/servers/{server_id}/migrations/{migration_id}",
    checks=[OF_SERVER + "show"],
    query={},
    shows=("migration", "server migration", False),
)
async def show(ctx: Context, server_id: str, migration_id: str) -> Answer:
    """Show a live migration of a server that is under way."""
    await model.find(ctx, ctx.db, server_id, rule=OF_SERVER + "show")
    rows = [row for row in await listing.in_progress(ctx.db, server_id) if str(row["id"]) == migration_id]
    if not rows:
        raise NotFound(f"In-progress live migration {migration_id[:80]} is not found for server {server_id}.")
    await listing.dress(ctx.db, rows, hosts=True)
    return Answer({"migration": ctx.render("server migration", rows[0])})
