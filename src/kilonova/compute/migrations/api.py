"""Routes that show migrations: those of all servers, and the running live migrations of a server."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.migrations import actions, queries, views
from kilonova.compute.servers import model
from kilonova.http import Context, Response, repeatable
from kilonova.http.errors import NotFound
from kilonova.http.pagination import LIMIT, MARKER, next_link
from kilonova.http.parameter_types import DATE_TIME, STRING, Schema

__all__ = ["actions", "views"]

INDEX = "os_compute_api:os-migrations:index"
OF_SERVER = "os_compute_api:servers:migrations:"
PATH = "/servers/{server_id}/migrations"
LIST: dict[str, Schema] = repeatable(
    {
        **dict.fromkeys(("hidden", "host", "instance_uuid", "source_compute", "status", "migration_type"), STRING),
        **dict.fromkeys(("user_id", "project_id"), STRING),
        "limit": LIMIT,
        "marker": MARKER,
        "changes-since": DATE_TIME,
        "changes-before": DATE_TIME,
    }
)


@api.route("GET", "/os-migrations", policy=INDEX, query=LIST, shows=("migrations", "migration", True))
async def index(ctx: Context) -> Response:
    """List migrations."""
    found, full = await queries.fetch_page(ctx)
    found = await queries.add_details(ctx.db, found, hosts=ctx.may(queries.HOSTS))
    shown: dict[str, object] = {"migrations": await ctx.render_all("migration", found)}
    if full:
        shown["migrations_links"] = next_link(ctx, "/os-migrations", found[-1].migration.operation_id, full)
    return Response(shown)


@api.route("GET", PATH, checks=[OF_SERVER + "index"], query={}, shows=("migrations", "server migration", True))
async def of_server(ctx: Context, server_id: str) -> Response:
    """List the running live migrations of a server."""
    server = await model.find(ctx, ctx.db, server_id, rule=OF_SERVER + "index")
    found = await queries.fetch_in_progress(ctx.db, server_id)
    shown = await queries.add_details(ctx.db, found, hosts=ctx.may(OF_SERVER + "index:host", model.target(server)))
    return Response({"migrations": await ctx.render_all("server migration", shown)})


@api.route(
    "GET",
    PATH + "/{migration_id}",
    checks=[OF_SERVER + "show"],
    query={},
    shows=("migration", "server migration", False),
)
async def show(ctx: Context, server_id: str, migration_id: str) -> Response:
    """Show a running live migration of a server."""
    await model.find(ctx, ctx.db, server_id, rule=OF_SERVER + "show")
    running = await queries.fetch_in_progress(ctx.db, server_id)
    found = [move for move in running if str(move.migration.id) == migration_id]
    if not found:
        raise NotFound(f"In-progress live migration {migration_id[:80]} is not found for server {server_id}.")
    (shown,) = await queries.add_details(ctx.db, found, hosts=True)
    return Response({"migration": ctx.render("server migration", shown)})
