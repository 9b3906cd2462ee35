"""Routes of port bindings."""

from __future__ import annotations

from kilonova.http import Context, Response, multi
from kilonova.http.schema import Schema
from kilonova.network import resources
from kilonova.network.api import api
from kilonova.network.bindings import model
from kilonova.network.bindings.model import Binding
from kilonova.network.errors import port_not_found
from kilonova.network.listing import select_fields
from kilonova.network.ports.api import load
from kilonova.network.ports.model import Port, vif_type
from kilonova.network.ports.schemas import VNIC_TYPES
from kilonova.network.ports.views import vif_details
from kilonova.network.resources import write_transaction
from kilonova.network.schemas import SHOW_QUERY, object_schema
from kilonova.store import Transaction

_CHANGEABLE: Schema = {"vnic_type": {"enum": list(VNIC_TYPES)}, "profile": {"type": ["object", "null"]}}
_HOST: Schema = {"type": "string", "minLength": 1, "maxLength": 255}

CREATE = object_schema({"binding": object_schema({"host": _HOST, **_CHANGEABLE}, ("host",))}, ("binding",))
UPDATE = object_schema({"binding": object_schema(_CHANGEABLE)}, ("binding",))
FILTERS = ("host", "vif_type", "vnic_type", "status")
LIST_QUERY = {**SHOW_QUERY, **{name: multi({"type": "string"}) for name in FILTERS}}


@api.route("GET", "/v2.0/ports/{port_id}/bindings", policy="get_port_binding", query=LIST_QUERY)
async def index(ctx: Context, port_id: str) -> Response:
    """List the bindings of a port."""
    shown = [view(binding) for binding in await model.bindings_of_port(ctx.db, await load(ctx, ctx.db, port_id))]
    for name in FILTERS:
        if name in ctx.query:
            shown = [binding for binding in shown if binding[name] in ctx.query[name]]
    return Response({"bindings": [select_fields(ctx, binding) for binding in shown]})


@api.route("GET", "/v2.0/ports/{port_id}/bindings/{host}", policy="get_port_binding", query=SHOW_QUERY)
async def show(ctx: Context, port_id: str, host: str) -> Response:
    """Show a port's binding to a host."""
    binding = await model.get(ctx.db, await load(ctx, ctx.db, port_id), host)
    return Response({"binding": select_fields(ctx, view(binding))})


@api.route("POST", "/v2.0/ports/{port_id}/bindings", policy="create_port_binding", body=CREATE, status=201)
async def create(ctx: Context, port_id: str) -> Response:
    """Create an inactive binding of a port to another host."""
    async with write_transaction(ctx) as tx:
        binding = await model.create(tx, await _lock_port(ctx, tx, port_id), ctx.body["binding"], ctx.now)
    return Response({"binding": view(binding)})


@api.route("PUT", "/v2.0/ports/{port_id}/bindings/{host}", policy="update_port_binding", body=UPDATE)
async def update(ctx: Context, port_id: str, host: str) -> Response:
    """Change a binding of a port."""
    async with write_transaction(ctx) as tx:
        port = await _lock_port(ctx, tx, port_id)
        binding = await model.change(tx, port, await model.get(tx, port, host), ctx.body["binding"], ctx.now)
    return Response({"binding": view(binding)})


@api.route("PUT", "/v2.0/ports/{port_id}/bindings/{host}/activate", policy="activate")
async def activate(ctx: Context, port_id: str, host: str) -> Response:
    """Activate a port binding; the previously active one becomes inactive."""
    async with write_transaction(ctx) as tx:
        port = await _lock_port(ctx, tx, port_id)
        binding = await model.activate(tx, port, await model.get(tx, port, host), ctx.now)
    return Response({"binding": view(binding)})


@api.route("DELETE", "/v2.0/ports/{port_id}/bindings/{host}", policy="delete_port_binding", status=204)
async def delete(ctx: Context, port_id: str, host: str) -> Response:
    """Delete a port binding; without its active binding a port is unbound."""
    async with write_transaction(ctx) as tx:
        port = await _lock_port(ctx, tx, port_id)
        await model.remove(tx, port, await model.get(tx, port, host), ctx.now)
    return Response()


async def _lock_port(ctx: Context, tx: Transaction, port_id: str) -> Port:
    """Lock the port, and with it its bindings, until the transaction ends."""
    await load(ctx, tx, port_id)
    port = await resources.lock(tx, Port, port_id)
    if port is None:
        raise port_not_found(port_id)
    return port


def view(binding: Binding) -> dict[str, object]:
    kind = vif_type(binding.host, binding.vnic_type)
    return {
        "host": binding.host,
        "status": "ACTIVE" if binding.active else "INACTIVE",
        "vif_type": kind,
        "vif_details": vif_details(kind),
        "vnic_type": binding.vnic_type,
        "profile": binding.profile,
    }
