"""Placement explanations: why a server is on its host, or why no host was found."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.placements import fit, views
from kilonova.compute.placements.visibility import ALL_HOSTS, OWN_HOSTS, RULE, get_visibility
from kilonova.compute.servers import model
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.pagination import LIMIT, page_limit
from kilonova.scheduler import attempts

__all__ = ["fit", "views"]


@api.route(
    "GET",
    "/servers/{server_id}/kilonova-placement",
    checks=[RULE, OWN_HOSTS, ALL_HOSTS],
    query={"limit": LIMIT},
    shows=("attempts", "attempt", True),
)
async def show(ctx: Context, server_id: str) -> Response:
    """Show the attempts to find a host for a server, newest first, with the reasons for rejected hosts.

    Attempts are kept after the server is deleted.
    """
    server = Server.decode_optional(await ctx.db.fetch_one("SELECT * FROM servers WHERE id = $1", server_id))
    if server is None or not ctx.may(model.SHOW, model.target(server)):
        raise model.not_found(server_id)
    ctx.authorize(RULE, model.target(server))
    visibility = await get_visibility(ctx, model.target(server))
    found = await attempts.of_server(ctx.db, server_id, page_limit(ctx))
    return Response(
        {"sees": visibility.sees, "attempts": [ctx.render("attempt", (attempt, visibility)) for attempt in found]}
    )
