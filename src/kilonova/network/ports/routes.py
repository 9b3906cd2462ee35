"""/v2.0/ports."""

from __future__ import annotations

import logging
from typing import Any

from kilonova import store
from kilonova.http import Answer, Context
from kilonova.http.client import Refused, Unreachable
from kilonova.network import rows
from kilonova.network.access import (
    CHANGED,
    authorize_attributes,
    authorize_use,
    project_for,
    sees_all,
    target_of,
    writing,
)
from kilonova.network.api import api
from kilonova.network.errors import conflict, outdated, port_not_found
from kilonova.network.listing import Listing, Query, only
from kilonova.network.networks.routes import load as load_network
from kilonova.network.ports import changing, liveness, model
from kilonova.network.ports.filters import ATTRIBUTES, SPECIAL
from kilonova.network.ports.model import Port
from kilonova.network.ports.schema import CREATE, UPDATE
from kilonova.network.ports.view import view
from kilonova.network.quotas.model import make_room
from kilonova.network.schema import SHOW_KEYS
from kilonova.network.subnets.model import of_network
from kilonova.store import Reader, Row, Transaction

log = logging.getLogger(__name__)
LISTING = Listing("ports", "ports r", ATTRIBUTES, SPECIAL)


@api.route("GET", "/v2.0/ports", policy="get_port", query=LISTING.keys)
async def index(ctx: Context) -> Answer:
    """List the project's ports, and those of others in the project's networks."""
    query = Query()
    if not sees_all(ctx, "get_port"):
        mine = query.arg(ctx.token.project_id)
        query.add(
            f"(r.project_id = {mine} OR EXISTS "
            f"(SELECT 1 FROM networks n WHERE n.id = r.network_id AND n.project_id = {mine}))"
        )
    if statuses := ctx.query.get("status"):
        liveness.narrow(ctx, query, statuses)
    found = await model.complete(ctx.db, await LISTING.rows(ctx, query))
    return Answer(LISTING.answer(ctx, [view(ctx, port) for port in await liveness.shown(ctx, ctx.db, found)]))


@api.route("GET", "/v2.0/ports/{port_id}", checks=["get_port"], query=SHOW_KEYS)
async def show(ctx: Context, port_id: str) -> Answer:
    """Show a port."""
    row = await load(ctx, ctx.db, port_id)
    (port,) = await liveness.shown(ctx, ctx.db, await model.complete(ctx.db, [row]))
    return Answer({"port": only(ctx, view(ctx, port))})


async def load(ctx: Context, reader: Reader, port_id: str) -> Row:
    """The port, if it exists and the caller may know that."""
    row = await rows.get(reader, "ports", port_id)
    if row is not None and not ctx.may("get_port", target_of(row["project_id"])):
        network = await rows.get(reader, "networks", row["network_id"])
        if not ctx.may("get_port", target_of(row["project_id"], network)):
            row = None
    if row is None:
        raise port_not_found(port_id)
    return row


@api.route("POST", "/v2.0/ports", checks=["create_port"], body=CREATE, status=201)
async def create(ctx: Context) -> Answer:
    """Create a port, or several at once: all or none."""
    bodies = ctx.body.get("ports") or [ctx.body["port"]]
    networks: dict[str, tuple[Row, list[Row]]] = {}
    async with writing(ctx) as tx:
        for network_id in sorted({body["network_id"] for body in bodies}):
            networks[network_id] = (await load_network(ctx, tx, network_id), await of_network(tx, network_id))
        made = [await _make(ctx, tx, body, *networks[body["network_id"]]) for body in bodies]
    shown = [view(ctx, port) for port in made]
    return Answer({"ports": shown} if "ports" in ctx.body else {"port": shown[0]})


async def _make(ctx: Context, tx: Transaction, body: dict[str, Any], network: Row, subnets: list[Row]) -> Port:
    project_id = project_for(ctx, body)
    _authorize(ctx, project_id, body, network)
    row = model.draft(project_id, network, body, ctx.now)
    groups = await changing.groups_for(tx, row, body, ctx.now)
    await make_room(tx, project_id, "port")
    return await model.create(tx, row, subnets, body.get("fixed_ips"), groups)


def _authorize(ctx: Context, project_id: str, body: dict[str, Any], network: Row) -> None:
    target = target_of(project_id, network)
    ctx.authorize("create_port", target)
    usual = {"device_id": "", "binding:vnic_type": "normal", "allowed_address_pairs": []}
    authorize_attributes(ctx, "create_port", body, target, usual)
    changing.authorize_addresses(ctx, "create_port", body, target)
    changing.authorize_device(ctx, body, network)
    authorize_use(ctx, project_id, network)


@api.route("PUT", "/v2.0/ports/{port_id}", checks=["update_port"], body=UPDATE)
async def update(ctx: Context, port_id: str) -> Answer:
    """Change a port."""
    body = ctx.body["port"]
    try:
        async with ctx.db.transaction() as tx:
            row = await load(ctx, tx, port_id)
            row = await rows.lock(tx, "ports", port_id) or row
            network = await rows.get(tx, "networks", row["network_id"])
            target = target_of(row["project_id"], network)
            ctx.authorize("update_port", target)
            meant = ctx.headers.get("if-match")
            if meant is not None and meant != f"revision_number={row['revision_number']}":
                raise outdated(meant, row["revision_number"])
            authorize_attributes(ctx, "update_port", body, target)
            changing.authorize_device(ctx, body, network, row)
            (port,) = await model.complete(tx, [row])
            changing.authorize_addresses(ctx, "update_port", body, target, port.fixed_ips)
            port = await changing.change(tx, port, body, ctx.now)
            (port,) = await liveness.shown(ctx, tx, [port])
            tx.wake(CHANGED)
    except store.Conflict as error:
        if error.kind != "unique":
            raise conflict("RetryRequest", "A security group was deleted just now; try again.") from None
        raise conflict("MacAddressInUse", f"The mac address {body.get('mac_address')} is in use.") from None
    return Answer({"port": view(ctx, port)})


@api.route("DELETE", "/v2.0/ports/{port_id}", checks=["delete_port"], status=204)
async def delete(ctx: Context, port_id: str) -> Answer:
    """Delete a port; its addresses are free again."""
    async with writing(ctx) as tx:
        row = await load(ctx, tx, port_id)
        if not ctx.may("delete_port", target_of(row["project_id"])):
            network = await rows.get(tx, "networks", row["network_id"])
            ctx.authorize("delete_port", target_of(row["project_id"], network))
        if row["device_owner"] in model.SERVICE_OWNERS:
            raise conflict(
                "ServicePortInUse",
                f"Port {port_id} cannot be deleted directly via the port API: has device owner {row['device_owner']}.",
            )
        await model.remove(tx, port_id)
    await _tell(ctx, row)
    return Answer()


async def _tell(ctx: Context, row: Row) -> None:
    """The server that loses its port by it, but for what compute deletes itself. Who is not heard has a record less."""
    compute = getattr(ctx.services, "compute", None)
    if compute is None or not row["device_owner"].startswith("compute:") or "service" in ctx.token.roles:
        return
    try:
        token = await ctx.services.identity.token()
        await compute.tell("network-vif-deleted", row["device_id"], row["id"], token)
    except (Refused, Unreachable) as error:
        log.warning("compute was not told of a deleted port: %s", error)
