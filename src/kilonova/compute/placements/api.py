"""Why a server is where it is, or nowhere."""

from __future__ import annotations

from kilonova.compute.actions.api import server_or_deleted
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
    """Show every attempt to find a host for a server, newest first: who was considered, and what spoke against them."""
    row = await server_or_deleted(ctx, server_id, RULE)
    seen = await sight(ctx, model.target(row))
    found = await attempts.of_server(ctx.db, server_id, limit_of(ctx))
    return Answer({"sees": seen.sees, "attempts": [ctx.render("attempt", (attempt, seen)) for attempt in found]})
