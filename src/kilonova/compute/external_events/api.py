"""External events: other services notify compute of changes. Events wake waiting operations or begin new ones."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kilonova.compute.api import api
from kilonova.compute.external_events.schemas import (
    CREATE,
    NETWORK_CHANGED,
    POWER_UPDATE,
    STATUSES,
    VIF_DELETED,
    VIF_PLUGGED,
    VIF_UNPLUGGED,
    VOLUME_EXTENDED,
    VOLUME_REIMAGED,
)
from kilonova.compute.operations.detach_interface import DetachInterface, DetachInterfaceParams
from kilonova.compute.operations.extend_volume import ExtendVolume
from kilonova.compute.operations.steps import interface_refresh, plugged
from kilonova.compute.operations.steps.volumes import ExtendVolumeParams
from kilonova.compute.servers.action_checks import begin_operation
from kilonova.compute.servers.server import Server
from kilonova.compute.servers.views import TEXT
from kilonova.http import Context, Field, Response, View, attribute
from kilonova.http.views import OMIT
from kilonova.operations import post_event
from kilonova.store import Transaction

api.view(
    View(
        "external event",
        {
            "name": attribute("name", TEXT),
            "server_uuid": attribute("server_uuid", TEXT),
            "status": attribute("status", {"enum": list(STATUSES)}),
            "tag": Field(lambda event, ctx: OMIT if event.tag is None else event.tag, TEXT, optional=True),
            "code": attribute("code", {"enum": [200, 400, 404, 422]}),
        },
    )
)


OK, UNPROCESSABLE, NOT_FOUND, BAD_REQUEST = 200, 422, 404, 400
SOME_FAILED = 207
# Events that require a tag, the id of the volume.
TAGGED = (VOLUME_EXTENDED, VOLUME_REIMAGED)
POWER = ("POWER_ON", "POWER_OFF")
# Events of changes of a server's ports.
NETWORK = (NETWORK_CHANGED, VIF_PLUGGED, VIF_UNPLUGGED)


class Event(msgspec.Struct, frozen=True):
    """An event, and the code of its response."""

    name: str
    server_uuid: str
    status: str = "completed"
    tag: str | None = None
    code: int = OK


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
    events = msgspec.convert(ctx.body["events"], list[Event])
    async with ctx.db.transaction() as tx:
        servers = await _find_servers(tx, events)
        codes = [NOT_FOUND] * len(events)
        # Concurrent requests lock servers in the same order.
        for number, event in sorted(enumerate(events), key=lambda numbered: (numbered[1].server_uuid, numbered[0])):
            codes[number] = await _process(ctx, tx, servers.get(event.server_uuid), event)
    results = [
        event if code == OK else msgspec.structs.replace(event, code=code, status="failed")
        for event, code in zip(events, codes, strict=True)
    ]
    status = OK if all(code == OK for code in codes) else SOME_FAILED
    return Response({"events": await ctx.render_all("external event", results)}, status=status)


async def _find_servers(tx: Transaction, events: Iterable[Event]) -> dict[str, Server]:
    server_ids = sorted({event.server_uuid for event in events})
    rows = await tx.fetch("SELECT * FROM servers WHERE id = ANY($1) AND NOT deleted", server_ids)
    return {server.id: server for server in Server.decode_all(rows)}


async def _process(ctx: Context, tx: Transaction, server: Server | None, event: Event) -> int:
    if server is None:
        return NOT_FOUND
    if not _is_valid(event):
        return BAD_REQUEST
    tag = event.tag or ""
    if event.name in NETWORK and not ctx.services.network.built_in:
        # Neutron's events are hints: the operations that they concern read the ports.
        if event.name == VIF_PLUGGED and event.status == "completed":
            await post_event(tx, plugged.port_event_key(server.id, tag))
        await post_event(tx, plugged.event_key(server.id), stored=False)
        await interface_refresh.begin_once(tx, server)
        return OK if server.host else UNPROCESSABLE
    if server.host is None:
        return UNPROCESSABLE
    if event.name == VIF_DELETED and server.find_interface(tag):
        await begin_operation(ctx, tx, server, DetachInterface, DetachInterfaceParams(tag))
    elif event.name != VOLUME_EXTENDED:
        await post_event(tx, event_key(event.name, server.id, tag), {"status": event.status})
    elif event.status == "completed":
        await begin_operation(ctx, tx, server, ExtendVolume, ExtendVolumeParams(tag))
    return OK


def event_key(name: str, server_id: str, tag: str) -> str:
    """The key by which operations wait for the event; the payload has the event's `status`."""
    return f"{name}:{server_id}:{tag}"


def _is_valid(event: Event) -> bool:
    if event.name == POWER_UPDATE:
        return event.tag in POWER
    return bool(event.tag) or event.name not in TAGGED
