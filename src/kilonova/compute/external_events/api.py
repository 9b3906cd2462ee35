"""External events: other services notify compute of changes. Events wake waiting operations or begin new ones."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.external_events.schemas import (
    CREATE,
    POWER_UPDATE,
    STATUSES,
    VIF_DELETED,
    VOLUME_EXTENDED,
    VOLUME_REIMAGED,
)
from kilonova.compute.operations.detach_interface import DetachInterface
from kilonova.compute.operations.extend_volume import ExtendVolume
from kilonova.compute.operations.steps import interfaces
from kilonova.compute.servers.action_checks import begin_operation
from kilonova.compute.servers.views import TEXT
from kilonova.http import Context, Field, Response, View, col
from kilonova.http.views import OMIT
from kilonova.operations import post_event
from kilonova.store import Row, Transaction

api.view(
    View(
        "external event",
        {
            "name": col("name", TEXT),
            "server_uuid": col("server_uuid", TEXT),
            "status": col("status", {"enum": list(STATUSES)}),
            "tag": Field(lambda event, ctx: event.get("tag", OMIT), TEXT, optional=True),
            "code": col("code", {"enum": [200, 400, 404, 422]}),
        },
    )
)


OK, UNPROCESSABLE, NOT_FOUND, BAD_REQUEST = 200, 422, 404, 400
SOME_FAILED = 207
# Events that require a tag, the id of the volume.
TAGGED = (VOLUME_EXTENDED, VOLUME_REIMAGED)
POWER = ("POWER_ON", "POWER_OFF")

Event = dict[str, Any]


@api.route(
    "POST",
    "/os-server-external-events",
    policy="os_compute_api:os-server-external-events:create",
    body=CREATE,
    query={},
    other_statuses=[SOME_FAILED],
    shows=("events", "external event", True),
)
async def create(ctx: Context) -> Response:
    """Receive events of servers. The response has a code for each."""
    events: list[Event] = [{"status": "completed", **event} for event in ctx.body["events"]]
    async with ctx.db.transaction() as tx:
        servers = await _find_servers(tx, events)
        for event in events:
            event["code"] = await _process(ctx, tx, servers.get(event["server_uuid"]), event)
    for event in events:
        if event["code"] != OK:
            event["status"] = "failed"
    status = OK if all(event["code"] == OK for event in events) else SOME_FAILED
    return Response({"events": [ctx.render("external event", event) for event in events]}, status=status)


async def _find_servers(tx: Transaction, events: list[Event]) -> dict[str, Row]:
    server_ids = sorted({event["server_uuid"] for event in events})
    rows = await tx.fetch(
        "SELECT id, project_id, host, nics FROM servers WHERE id = ANY($1) AND NOT deleted", server_ids
    )
    return {row["id"]: row for row in rows}


async def _process(ctx: Context, tx: Transaction, server: Row | None, event: Event) -> int:
    if server is None:
        return NOT_FOUND
    if not _is_valid(event):
        return BAD_REQUEST
    if server["host"] is None:
        return UNPROCESSABLE
    if event["name"] == VIF_DELETED and interfaces.find(server, event.get("tag", "")):
        await begin_operation(ctx, tx, server, DetachInterface, {"port_id": event["tag"]})
    elif event["name"] != VOLUME_EXTENDED:
        await post_event(tx, event_key(event["name"], server["id"], event.get("tag", "")), {"status": event["status"]})
    elif event["status"] == "completed":
        await begin_operation(ctx, tx, server, ExtendVolume, {"volume_id": event["tag"]})
    return OK


def event_key(name: str, server_id: str, tag: str) -> str:
    """The key by which operations wait for the event; the payload has the event's `status`."""
    return f"{name}:{server_id}:{tag}"


def _is_valid(event: Event) -> bool:
    tag = event.get("tag")
    return tag in POWER if event["name"] == POWER_UPDATE else bool(tag) or event["name"] not in TAGGED
