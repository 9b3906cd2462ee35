"""Routes of the interfaces of a server: ports of the network service, with the server's tag for the device."""

from __future__ import annotations

from functools import partial

import msgspec

from kilonova.compute.api import api
from kilonova.compute.interfaces import checks, ip_actions
from kilonova.compute.interfaces.checks import RequestedAttachment
from kilonova.compute.operations.attach_interface import BIND, MAKE, AttachInterface, AttachInterfaceParams
from kilonova.compute.operations.detach_interface import DetachInterface, DetachInterfaceParams
from kilonova.compute.operations.steps import plugged
from kilonova.compute.servers import action_checks, model, operation_result
from kilonova.compute.servers.schemas import DEVICE_TAG
from kilonova.compute.servers.server import Server
from kilonova.compute.servers.views import NULLABLE, TEXT
from kilonova.http import Context, Field, Response, View, attribute
from kilonova.http.errors import NotFound, Unavailable
from kilonova.http.parameter_types import UUID, Schema, closed_object
from kilonova.network.client import Port
from kilonova.operations.errors import Failed

__all__ = ["ip_actions"]

RULE = "os_compute_api:os-attach-interfaces:"
INTERFACES = "/servers/{server_id}/os-interface"
INTERFACE = INTERFACES + "/{port_id}"
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
    server = await model.find(ctx, ctx.db, server_id, rule=RULE + "list")
    found = await ctx.services.network.ports_of_device(
        server_id, server.project_id, await ctx.services.identity.token()
    )
    return Response({"interfaceAttachments": [_shown(ctx, server, port) for port in found]})


@api.route("GET", INTERFACE, checks=[RULE + "show"], query={}, shows=("interfaceAttachment", "interface", False))
async def show(ctx: Context, server_id: str, port_id: str) -> Response:
    """Show an interface of a server."""
    server = await model.find(ctx, ctx.db, server_id, rule=RULE + "show")
    return Response({"interfaceAttachment": _shown(ctx, server, await _port(ctx, server, port_id))})


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
    requested = msgspec.convert(ctx.body.get("interfaceAttachment", {}), RequestedAttachment)
    checks.check_body(requested)
    find_ready = partial(
        action_checks.find_ready, server_id=server_id, rule=RULE + "create", transition="attach_interface"
    )
    async with ctx.db.transaction() as tx:
        server = await find_ready(ctx, tx)
    wanted = await checks.resolve_request(ctx, requested, server.project_id)
    async with ctx.db.transaction() as tx:
        server = await find_ready(ctx, tx)
        checks.check_new(server, wanted)
        params = AttachInterfaceParams(wanted)
        operation_id = await action_checks.begin_operation(
            ctx, tx, server, AttachInterface, params, without=plugged.steps_to_skip(ctx.services)
        )
    seconds = operation_result.result_timeout_seconds(ctx)
    try:
        results = await operation_result.await_results(ctx, operation_id, seconds)
    except Failed as failure:
        raise checks.attach_error(server_id, failure) from None
    if MAKE.name not in results:
        raise Unavailable("The interface is still being attached; its port is not known yet.")
    port = await _port(ctx, server, MAKE.decode(results[MAKE.name]))
    tag = BIND.decode(results[BIND.name]).tag if BIND.name in results else wanted.tag
    return Response({"interfaceAttachment": ctx.render("interface", AttachedPort(port, tag))})


@api.route("DELETE", INTERFACE, checks=[RULE + "delete"], query={}, status=202)
async def delete(ctx: Context, server_id: str, port_id: str) -> Response:
    """Detach an interface from a server."""
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_ready(ctx, tx, server_id, rule=RULE + "delete", transition="detach_interface")
        if server.find_interface(port_id) is None:
            raise _missing(port_id)
        await action_checks.begin_operation(ctx, tx, server, DetachInterface, DetachInterfaceParams(port_id))
    return Response()


async def _port(ctx: Context, server: Server, port_id: str) -> Port:
    port = await ctx.services.network.port(port_id, await ctx.services.identity.token())
    if port is None or (port.device_id, port.project_id) != (server.id, server.project_id):
        raise _missing(port_id)
    return port


def _missing(port_id: str) -> NotFound:
    return NotFound(f"Port id {port_id} could not be found.")


class AttachedPort(msgspec.Struct, frozen=True):
    """A port with the tag of its device."""

    port: Port
    tag: str | None


def _shown(ctx: Context, server: Server, port: Port) -> dict[str, object]:
    interface = server.find_interface(port.id)
    return ctx.render("interface", AttachedPort(port, interface.tag if interface else None))


def _addresses(attached: AttachedPort, ctx: Context) -> list[dict[str, str]]:
    return [{"subnet_id": fixed.subnet_id, "ip_address": fixed.ip_address} for fixed in attached.port.fixed_ips]


api.view(
    View(
        "interface",
        {
            "net_id": Field(lambda attached, ctx: attached.port.network_id, TEXT),
            "port_id": Field(lambda attached, ctx: attached.port.id, TEXT),
            "mac_addr": Field(lambda attached, ctx: attached.port.mac_address, TEXT),
            "port_state": Field(lambda attached, ctx: attached.port.status, TEXT),
            "fixed_ips": Field(_addresses, {"type": "array", "items": {"type": "object"}}),
            "tag": attribute("tag", NULLABLE),
        },
    )
)
