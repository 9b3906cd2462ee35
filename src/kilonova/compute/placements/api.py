"""Why a server is where it is, or nowhere."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.placements import fit, views
from kilonova.compute.placements.sight import ALL_HOSTS, OWN_HOSTS, RULE, sight
from kilonova.compute.servers import model
from kilonova.http import Answer, Context
from kilonova.http.pagination import LIMIT, limit_of
from kilonova.scheduler import attempts

__all__ = ["fit", "views"]


@api.route(
    "GET",
    "/servers/{server_id}/kilonova-placement",
    checks=[RULE, OWN_HOSTS, ALL_HOSTS],
    query={"limit": LIMIT},
    shows=("attempts", "attempt", True),
)
async def show(ctx: Context, server_id: str) -> Answer:
    """Show every attempt to find a host for a server, newest first: who was considered, and what spoke against them.

    They outlive the server, at every version.
    """
    row = await ctx.db.fetch_one("SELECT project_id, user_id FROM servers WHERE id = $1", server_id)
    if row is None or not ctx.may(model.SHOW, model.target(row)):
        raise model.missing(server_id)
    ctx.authorize(RULE, model.target(row))
    seen = await sight(ctx, model.target(row))
    found = await attempts.of_server(ctx.db, server_id, limit_of(ctx))
    return Answer({"sees": seen.sees, "attempts": [ctx.render("attempt", (attempt, seen)) for attempt in found]})
