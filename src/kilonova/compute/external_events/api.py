"""The route by which other services tell of servers: who waits for an event goes on, and some begin something."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.external_events import views
from kilonova.compute.external_events.schemas import (
    CREATE,
    POWER_UPDATE,
    VIF_DELETED,
    VOLUME_EXTENDED,
    VOLUME_REIMAGED,
)
from kilonova.compute.operations import nics
from kilonova.compute.operations.detach_interface import DetachInterface
from kilonova.compute.operations.extend_volume import ExtendVolume
from kilonova.http import Answer, Context
from kilonova.operations import Operation, begin, post_event
from kilonova.store import Row, Transaction

__all__ = ["views"]

OK, UNPROCESSABLE, MISSING, WRONG = 200, 422, 404, 400
SOME_FAILED = 207
# These say nothing without the tag that names what they are about.
TAGGED = (VOLUME_EXTENDED, VOLUME_REIMAGED)
POWER = ("POWER_ON", "POWER_OFF")

Event = dict[str, Any]


@api.route(
    "POST",
    "/os-server-external-events",
    policy="os_compute_api:os-server-external-events:create",
    body=CREATE,
    query={},
    also=[SOME_FAILED],
    shows=("events", "external event", True),
)
async def create(ctx: Context) -> Answer:
    """Tell of events of servers. Each is answered by a code of its own."""
    events: list[Event] = [{"status": "completed", **event} for event in ctx.body["events"]]
    async with ctx.db.transaction() as tx:
        servers = await _servers(tx, events)
        for event in events:
            event["code"] = await _take(ctx, tx, servers.get(event["server_uuid"]), event)
    for event in events:
        if event["code"] != OK:
            event["status"] = "failed"
    status = OK if all(event["code"] == OK for event in events) else SOME_FAILED
    return Answer({"events": [ctx.render("external event", event) for event in events]}, status=status)


async def _servers(tx: Transaction, events: list[Event]) -> dict[str, Row]:
    asked = sorted({event["server_uuid"] for event in events})
    rows = await tx.fetch("SELECT id, project_id, host, nics FROM servers WHERE id = ANY($1) AND NOT deleted", asked)
    return {row["id"]: row for row in rows}


async def _take(ctx: Context, tx: Transaction, server: Row | None, event: Event) -> int:
    """What comes of the event, as a code."""
    if server is None:
        return MISSING
    if not _is_whole(event):
        return WRONG
    if server["host"] is None:
        return UNPROCESSABLE
    if event["name"] == VIF_DELETED and nics.find(server, event.get("tag", "")):
        await _begin(ctx, tx, server, DetachInterface, {"port_id": event["tag"]})
    elif event["name"] != VOLUME_EXTENDED:
        await post_event(tx, key(event["name"], server["id"], event.get("tag", "")), {"status": event["status"]})
    elif event["status"] == "completed":
        await _begin(ctx, tx, server, ExtendVolume, {"volume_id": event["tag"]})
    return OK


def key(name: str, server_id: str, tag: str) -> str:
    """What an operation waits for that waits for such an event. Its payload has the event's `status`."""
    return f"{name}:{server_id}:{tag}"


def _is_whole(event: Event) -> bool:
    tag = event.get("tag")
    return tag in POWER if event["name"] == POWER_UPDATE else bool(tag) or event["name"] not in TAGGED


async def _begin(
    ctx: Context, tx: Transaction, server: Row, operation: type[Operation], params: dict[str, Any]
) -> None:
    await begin(
        tx,
        operation,
        params=params,
        server_id=server["id"],
        project_id=server["project_id"],
        user_id=ctx.token.user_id,
        request_id=ctx.request_id,
        host=server["host"],
    )
