"""/v2.0/ports/{port_id}/bindings"""

from __future__ import annotations

from kilonova.http import Answer, Context
from kilonova.network import rows
from kilonova.network.access import writing
from kilonova.network.api import api
from kilonova.network.bindings import model
from kilonova.network.bindings.schema import CREATE, FILTERS, LIST_KEYS, UPDATE
from kilonova.network.bindings.view import view
from kilonova.network.errors import port_not_found
from kilonova.network.listing import only
from kilonova.network.ports.routes import load
from kilonova.network.schema import SHOW_KEYS
from kilonova.store import Row, Transaction


@api.route("GET", "/v2.0/ports/{port_id}/bindings", policy="get_port_binding", query=LIST_KEYS)
async def index(ctx: Context, port_id: str) -> Answer:
    """List the bindings of a port."""
    shown = [view(binding) for binding in await model.of_port(ctx.db, await load(ctx, ctx.db, port_id))]
    for name in FILTERS:
        if name in ctx.query:
            shown = [binding for binding in shown if binding[name] in ctx.query[name]]
    return Answer({"bindings": [only(ctx, binding) for binding in shown]})


@api.route("GET", "/v2.0/ports/{port_id}/bindings/{host}", policy="get_port_binding", query=SHOW_KEYS)
async def show(ctx: Context, port_id: str, host: str) -> Answer:
    """Show the binding of a port to a host."""
    binding = await model.get(ctx.db, await load(ctx, ctx.db, port_id), host)
    return Answer({"binding": only(ctx, view(binding))})


@api.route("POST", "/v2.0/ports/{port_id}/bindings", policy="create_port_binding", body=CREATE, status=201)
async def create(ctx: Context, port_id: str) -> Answer:
    """Bind a port to a further host, where it stands by."""
    async with writing(ctx) as tx:
        binding = await model.create(tx, await _hold(ctx, tx, port_id), ctx.body["binding"], ctx.now)
    return Answer({"binding": view(binding)})


@api.route("PUT", "/v2.0/ports/{port_id}/bindings/{host}", policy="update_port_binding", body=UPDATE)
async def update(ctx: Context, port_id: str, host: str) -> Answer:
    """Change a binding of a port."""
    async with writing(ctx) as tx:
        port = await _hold(ctx, tx, port_id)
        binding = await model.change(tx, port, await model.get(tx, port, host), ctx.body["binding"], ctx.now)
    return Answer({"binding": view(binding)})


@api.route("PUT", "/v2.0/ports/{port_id}/bindings/{host}/activate", policy="activate")
async def activate(ctx: Context, port_id: str, host: str) -> Answer:
    """Make a binding of a port the active one; the one that was stands by."""
    async with writing(ctx) as tx:
        port = await _hold(ctx, tx, port_id)
        binding = await model.activate(tx, port, await model.get(tx, port, host), ctx.now)
    return Answer({"binding": view(binding)})


@api.route("DELETE", "/v2.0/ports/{port_id}/bindings/{host}", policy="delete_port_binding", status=204)
async def delete(ctx: Context, port_id: str, host: str) -> Answer:
    """Delete a binding of a port; without the active one, the port is bound to no host."""
    async with writing(ctx) as tx:
        port = await _hold(ctx, tx, port_id)
        await model.remove(tx, port, await model.get(tx, port, host), ctx.now)
    return Answer()


async def _hold(ctx: Context, tx: Transaction, port_id: str) -> Row:
    """The port, whose bindings nobody else changes until the transaction ends."""
    await load(ctx, tx, port_id)
    row = await rows.lock(tx, "ports", port_id)
    if row is None:
        raise port_not_found(port_id)
    return row
