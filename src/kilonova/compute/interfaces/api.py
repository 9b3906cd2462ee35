"""Routes of the interfaces of a server."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.interfaces import checks, schemas, views
from kilonova.compute.operations import nics
from kilonova.compute.operations.attach_interface import BIND, MAKE, AttachInterface
from kilonova.compute.operations.detach_interface import DetachInterface
from kilonova.compute.servers import acting, awaiting, model
from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound, Unavailable
from kilonova.operations.errors import Failed
from kilonova.store import Row

__all__ = ["views"]

RULE = "os_compute_api:os-attach-interfaces:"
INTERFACES = "/servers/{server_id}/os-interface"
INTERFACE = INTERFACES + "/{port_id}"
Item = dict[str, Any]


@api.route("GET", INTERFACES, checks=[RULE + "list"], query={}, shows=("interfaceAttachments", "interface", True))
async def index(ctx: Context, server_id: str) -> Answer:
    """List the interfaces of a server."""
    row = await model.find(ctx, ctx.db, server_id, rule=RULE + "list")
    found = await ctx.services.network.ports_of(server_id, await ctx.services.identity.token())
    return Answer({"interfaceAttachments": [_shown(ctx, row, port) for port in found]})


@api.route("GET", INTERFACE, checks=[RULE + "show"], query={}, shows=("interfaceAttachment", "interface", False))
async def show(ctx: Context, server_id: str, port_id: str) -> Answer:
    """Show an interface of a server."""
    row = await model.find(ctx, ctx.db, server_id, rule=RULE + "show")
    return Answer({"interfaceAttachment": _shown(ctx, row, await _port(ctx, server_id, port_id))})


@api.route(
    "POST",
    INTERFACES,
    checks=[RULE + "create"],
    body=schemas.CREATE,
    query={},
    shows=("interfaceAttachment", "interface", False),
)
async def create(ctx: Context, server_id: str) -> Answer:
    """Attach an interface to a server."""
    asked = ctx.body.get("interfaceAttachment", {})
    checks.check_body(asked)
    ready = {"rule": RULE + "create", "transition": "attach_interface"}
    async with ctx.db.transaction() as tx:
        await acting.ready(ctx, tx, server_id, **ready)
    wanted = await checks.requested(ctx, asked)
    async with ctx.db.transaction() as tx:
        row = await acting.ready(ctx, tx, server_id, **ready)
        checks.check_new(row, wanted)
        operation_id = await acting.start(ctx, tx, row, AttachInterface, {"interface": wanted})
    try:
        results = (await awaiting.outcome(ctx, operation_id, awaiting.seconds(ctx)))["results"]
    except Failed as failure:
        raise checks.refusal(server_id, failure) from None
    if MAKE not in results:
        raise Unavailable("The interface is being attached, and it is not known yet what it will be.")
    port = await _port(ctx, server_id, results[MAKE])
    nic = results.get(BIND) or {"tag": wanted["tag"]}
    return Answer({"interfaceAttachment": ctx.render("interface", {**port, "tag": nic["tag"]})})


@api.route("DELETE", INTERFACE, checks=[RULE + "delete"], query={}, status=202)
async def delete(ctx: Context, server_id: str, port_id: str) -> Answer:
    """Detach an interface from a server."""
    async with ctx.db.transaction() as tx:
        row = await acting.ready(ctx, tx, server_id, rule=RULE + "delete", transition="detach_interface")
        if nics.find(row, port_id) is None:
            raise _missing(port_id)
        await acting.start(ctx, tx, row, DetachInterface, {"port_id": port_id})
    return Answer()


async def _port(ctx: Context, server_id: str, port_id: str) -> Item:
    port: Item | None = await ctx.services.network.port(port_id, await ctx.services.identity.token())
    if port is None or port["device_id"] != server_id:
        raise _missing(port_id)
    return port


def _missing(port_id: str) -> NotFound:
    return NotFound(f"Port id {port_id} could not be found.")


def _shown(ctx: Context, row: Row, port: Item) -> Item:
    nic = nics.find(row, port["id"])
    return ctx.render("interface", {**port, "tag": nic and nic["tag"]})
