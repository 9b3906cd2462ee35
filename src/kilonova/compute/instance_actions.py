"""Instance actions: what was done to a server, as a view of its operations."""

from __future__ import annotations

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.servers import model
from kilonova.compute.servers.server import Server
from kilonova.compute.servers.views import NULLABLE, TEXT, host_id
from kilonova.http import Context, Field, Response, View
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.pagination import LIMIT, MARKER, marker_not_found, next_link, page_limit
from kilonova.http.parameter_types import DATE_TIME
from kilonova.http.views import Value
from kilonova.operations import views as operations

RULE = "os_compute_api:os-instance-actions:"
PATH = "/servers/{server_id}/os-instance-actions"
EVENTS, DETAILS = RULE + "events", RULE + "events:details"
OF_DELETED = api.behaviour("actions of deleted servers are shown")
EVENTS_FOR_ALL = api.behaviour("events of an action are shown to all")
PAGED = api.behaviour("actions have pages")


def _of(name: str) -> Value:
    return lambda item, ctx: getattr(item, name)


def _time(name: str) -> Value:
    return lambda item, ctx: _written(getattr(item, name))


def _written(moment: float | None) -> str | None:
    return None if moment is None else clock.iso_micro(moment)


# An event is shown together with the project of its server.


def _event(name: str) -> Value:
    return lambda item, ctx: getattr(item[0], name)


def _moment(name: str) -> Value:
    return lambda item, ctx: _written(getattr(item[0], name))


def _host_id(item: tuple[operations.Event, str], ctx: Context) -> str:
    """As the server's own."""
    event, project_id = item
    return host_id(project_id, event.host)


FIELDS = {
    "action": Field(_of("action"), TEXT),
    "instance_uuid": Field(_of("server_id"), TEXT),
    "request_id": Field(_of("request_id"), TEXT),
    "user_id": Field(_of("user_id"), NULLABLE),
    "project_id": Field(_of("project_id"), NULLABLE),
    "start_time": Field(_time("start_time"), TEXT),
    "message": Field(_of("message"), NULLABLE),
    "updated_at": Field(_time("updated_at"), TEXT),
}

api.view(View("action", FIELDS))
api.view(View("action in list", FIELDS))
api.view(
    View(
        "action event",
        {
            "event": Field(_event("event"), TEXT),
            "start_time": Field(_moment("start_time"), TEXT),
            "finish_time": Field(_moment("finish_time"), NULLABLE),
            "result": Field(_event("result"), NULLABLE),
            "traceback": Field(_event("traceback"), NULLABLE, EVENTS),
            "host": Field(_event("host"), NULLABLE, EVENTS),
            "hostId": Field(_host_id, TEXT),
            "details": Field(_event("details"), NULLABLE, DETAILS),
        },
    )
)


@api.route(
    "GET",
    PATH,
    checks=[RULE + "list"],
    query={"limit": LIMIT, "marker": MARKER, "changes-since": DATE_TIME, "changes-before": DATE_TIME},
    shows=("instanceActions", "action in list", True),
)
async def index(ctx: Context, server_id: str) -> Response:
    """List what was done to a server, newest first."""
    await server_or_deleted(ctx, server_id, RULE + "list")
    since, before = _parse_time(ctx, "changes-since"), _parse_time(ctx, "changes-before")
    if since is not None and before is not None and before < since:
        raise BadRequest("The value of changes-since must be less than or equal to changes-before.")
    limit = page_limit(ctx)
    try:
        found = await operations.list_actions(
            ctx.db,
            server_id,
            limit=limit,
            marker=ctx.query_one("marker"),
            changes_since=since,
            changes_before=before,
        )
    except operations.UnknownMarker as error:
        raise marker_not_found(str(error)) from None
    body: dict[str, object] = {"instanceActions": await ctx.render_all("action in list", found)}
    if ctx.has_behaviour(PAGED) and found and len(found) == limit:
        path = f"/servers/{server_id}/os-instance-actions"
        body["links"] = next_link(ctx, path, found[-1].request_id or "", full=True)
    return Response(body)


@api.route("GET", PATH + "/{request_id}", checks=[RULE + "show"], query={}, shows=("instanceAction", "action", False))
async def show(ctx: Context, server_id: str, request_id: str) -> Response:
    """Show an action with its events."""
    server = await server_or_deleted(ctx, server_id, RULE + "show")
    action = await operations.find_action(ctx.db, server_id, request_id)
    if action is None:
        raise NotFound(f"Action for request_id {request_id} on instance {server_id} not found")
    shown = ctx.render("action", action)
    if ctx.has_behaviour(EVENTS_FOR_ALL) or ctx.may(EVENTS, model.target(server)):
        shown["events"] = [ctx.render("action event", (event, server.project_id)) for event in action.events]
    return Response({"instanceAction": shown})


async def server_or_deleted(ctx: Context, server_id: str, rule: str) -> Server:
    """Also a deleted one, where the version shows its actions."""
    row = await ctx.db.fetch_one("SELECT * FROM servers WHERE id = $1", server_id)
    server = Server.decode_optional(row)
    if server is None or not ctx.may(model.SHOW, model.target(server)):
        raise model.not_found(server_id)
    if server.deleted and not ctx.has_behaviour(OF_DELETED):
        raise model.not_found(server_id)
    ctx.authorize(rule, model.target(server))
    return server


def _parse_time(ctx: Context, key: str) -> float | None:
    text = ctx.query_one(key)
    return clock.parse(text) if text is not None else None
