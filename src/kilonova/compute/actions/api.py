"""Routes of instance actions."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.compute.actions import views
from kilonova.compute.api import api
from kilonova.compute.servers import model
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.pagination import LIMIT, MARKER, limit_of, marker_missing, next_link
from kilonova.http.pieces import DATE_TIME
from kilonova.operations import views as operations
from kilonova.store import Row

RULE = "os_compute_api:os-instance-actions:"


@api.route(
    "GET",
    "/servers/{server_id}/os-instance-actions",
    checks=[RULE + "list"],
    query={"limit": LIMIT, "marker": MARKER, "changes-since": DATE_TIME, "changes-before": DATE_TIME},
    shows=("instanceActions", "action in list", True),
)
async def index(ctx: Context, server_id: str) -> Answer:
    """List what was done to a server, newest first."""
    await server_or_deleted(ctx, server_id, RULE + "list")
    since, before = _moment(ctx, "changes-since"), _moment(ctx, "changes-before")
    if since is not None and before is not None and before < since:
        raise BadRequest("The value of changes-since must be less than or equal to changes-before.")
    limit = limit_of(ctx)
    try:
        found = await operations.actions_of(
            ctx.db,
            server_id,
            limit=limit,
            marker=ctx.query_one("marker"),
            changes_since=since,
            changes_before=before,
        )
    except operations.UnknownMarker as error:
        raise marker_missing(str(error)) from None
    body: dict[str, Any] = {"instanceActions": [ctx.render("action in list", action) for action in found]}
    if ctx.behaves("actions have pages") and found and len(found) == limit:
        path = f"/servers/{server_id}/os-instance-actions"
        body["links"] = next_link(ctx, path, found[-1].request_id or "", full=True)
    return Answer(body)


@api.route(
    "GET",
    "/servers/{server_id}/os-instance-actions/{request_id}",
    checks=[RULE + "show"],
    query={},
    shows=("instanceAction", "action", False),
)
async def show(ctx: Context, server_id: str, request_id: str) -> Answer:
    """Show an action with its events."""
    row = await server_or_deleted(ctx, server_id, RULE + "show")
    action = await operations.action_of(ctx.db, server_id, request_id)
    if action is None:
        raise NotFound(f"Action for request_id {request_id} on instance {server_id} not found")
    shown = ctx.render("action", action)
    if ctx.behaves("events of an action are shown to all") or ctx.may(views.EVENTS, model.target(row)):
        shown["events"] = [ctx.render("action event", (event, row["project_id"])) for event in action.events]
    return Answer({"instanceAction": shown})


async def server_or_deleted(ctx: Context, server_id: str, rule: str) -> Row:
    """Also a deleted one, where the version shows its actions."""
    row = await ctx.db.fetch_one("SELECT * FROM servers WHERE id = $1", server_id)
    if row is None or not ctx.may(model.SHOW, model.target(row)):
        raise model.missing(server_id)
    if row["deleted"] and not ctx.behaves("actions of deleted servers are shown"):
        raise model.missing(server_id)
    ctx.authorize(rule, model.target(row))
    return row


def _moment(ctx: Context, key: str) -> float | None:
    text = ctx.query_one(key)
    return clock.parse(text) if text is not None else None
