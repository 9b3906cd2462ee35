"""Routes of the interfaces of a server: ports of the network service, with the server's tag for the device."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.interfaces import checks, ip_actions
from kilonova.compute.operations.attach_interface import BIND, MAKE, AttachInterface
from kilonova.compute.operations.detach_interface import DetachInterface
from kilonova.compute.operations.steps import interfaces
from kilonova.compute.servers import action_checks, model, operation_result
from kilonova.compute.servers.schemas import DEVICE_TAG
from kilonova.compute.servers.views import NULLABLE, TEXT
from kilonova.http import Context, Field, Response, View, col
from kilonova.http.errors import NotFound, Unavailable
from kilonova.http.parameter_types import UUID, Schema, closed_object
from kilonova.operations.errors import Failed
from kilonova.store import Row

__all__ = ["ip_actions"]

RULE = "os_compute_api:os-attach-interfaces:"
INTERFACES = "/servers/{server_id}/os-interface"
INTERFACE = INTERFACES + "/{port_id}"
Item = dict[str, Any]
ADDRESS: Schema = closed_object({"ip_address": {"type": "string", "format": "ip"}}, ["ip_address"])
CREATE: Schema = closed_object(
    {
        "interfaceAttachment": closed_object(
            {
                "net_id": UUID,
                "port_id": UUID,
                "fixed_ips": {"type": "array", "minItems": 1, "maxItems": 1, "items": ADDRESS},
                "tag": DEVICE_TAG,
            }
        )
    }
)


@api.route("GET", INTERFACES, checks=[RULE + "list"], query={}, shows=("interfaceAttachments", "interface", True))
async def index(ctx: Context, server_id: str) -> Response:
    """List the interfaces of a server."""
    row = await model.find(ctx, ctx.db, server_id, rule=RULE + "list")
    found = await ctx.services.network.ports_of_device(server_id, await ctx.services.identity.token())
    return Response({"interfaceAttachments": [_shown(ctx, row, port) for port in found]})


@api.route("GET", INTERFACE, checks=[RULE + "show"], query={}, shows=("interfaceAttachment", "interface", False))
async def show(ctx: Context, server_id: str, port_id: str) -> Response:
    """Show an interface of a server."""
    row = await model.find(ctx, ctx.db, server_id, rule=RULE + "show")
    return Response({"interfaceAttachment": _shown(ctx, row, await _port(ctx, server_id, port_id))})


@api.route(
    "POST",
    INTERFACES,
    checks=[RULE + "create"],
    body=CREATE,
    query={},
    shows=("interfaceAttachment", "interface", False),
)
async def create(ctx: Context, server_id: str) -> Response:
    """Attach an interface to a server."""
    requested = ctx.body.get("interfaceAttachment", {})
    checks.check_body(requested)
    ready = {"rule": RULE + "create", "transition": "attach_interface"}
    async with ctx.db.transaction() as tx:
        await action_checks.find_ready(ctx, tx, server_id, **ready)
    wanted = await checks.resolve_request(ctx, requested)
    async with ctx.db.transaction() as tx:
        row = await action_checks.find_ready(ctx, tx, server_id, **ready)
        checks.check_new(row, wanted)
        operation_id = await action_checks.begin_operation(ctx, tx, row, AttachInterface, {"interface": wanted})
    try:
        results = (
            await operation_result.await_result(ctx, operation_id, operation_result.result_timeout_seconds(ctx))
        )["results"]
    except Failed as failure:
        raise checks.attach_error(server_id, failure) from None
    if MAKE not in results:
        raise Unavailable("The interface is still being attached; its port is not known yet.")
    port = await _port(ctx, server_id, results[MAKE])
    nic = results.get(BIND) or {"tag": wanted["tag"]}
    return Response({"interfaceAttachment": ctx.render("interface", {**port, "tag": nic["tag"]})})


@api.route("DELETE", INTERFACE, checks=[RULE + "delete"], query={}, status=202)
async def delete(ctx: Context, server_id: str, port_id: str) -> Response:
    """Detach an interface from a server."""
    async with ctx.db.transaction() as tx:
        row = await action_checks.find_ready(ctx, tx, server_id, rule=RULE + "delete", transition="detach_interface")
        if interfaces.find(row, port_id) is None:
            raise _missing(port_id)
        await action_checks.begin_operation(ctx, tx, row, DetachInterface, {"port_id": port_id})
    return Response()


async def _port(ctx: Context, server_id: str, port_id: str) -> Item:
    port: Item | None = await ctx.services.network.port(port_id, await ctx.services.identity.token())
    if port is None or port["device_id"] != server_id:
        raise _missing(port_id)
    return port


def _missing(port_id: str) -> NotFound:
    return NotFound(f"Port id {port_id} could not be found.")


def _shown(ctx: Context, row: Row, port: Item) -> Item:
    nic = interfaces.find(row, port["id"])
    return ctx.render("interface", {**port, "tag": nic and nic["tag"]})


def _addresses(row: Any, ctx: Context) -> list[dict[str, Any]]:
    return [{key: address[key] for key in ("subnet_id", "ip_address")} for address in row["fixed_ips"]]


api.view(
    View(
        "interface",
        {
            "net_id": col("network_id", TEXT),
            "port_id": col("id", TEXT),
            "mac_addr": col("mac_address", TEXT),
            "port_state": col("status", TEXT),
            "fixed_ips": Field(_addresses, {"type": "array", "items": {"type": "object"}}),
            "tag": col("tag", NULLABLE),
        },
    )
)
