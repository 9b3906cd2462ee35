"""Routes of ports."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import convert

from kilonova import store
from kilonova.http import Context, Response
from kilonova.http.client import Refused, Unreachable
from kilonova.network import resources
from kilonova.network.api import api
from kilonova.network.authorization import (
    authorize_attributes,
    authorize_network_use,
    policy_target,
    requested_project,
    sees_all,
)
from kilonova.network.errors import conflict, port_not_found, revision_mismatch
from kilonova.network.listing import Listing, Query, select_fields
from kilonova.network.networks.api import load as load_network
from kilonova.network.networks.model import Network
from kilonova.network.ports import model, trunk_details
from kilonova.network.ports.authorization import authorize_device, authorize_fixed_ips
from kilonova.network.ports.filters import ATTRIBUTES, CUSTOM_FILTERS
from kilonova.network.ports.fixed_ips import FixedIpRequest
from kilonova.network.ports.model import Port, PortDetails
from kilonova.network.ports.schemas import CREATE, UPDATE
from kilonova.network.ports.status import filter_by_status, with_current_status
from kilonova.network.ports.update import apply_update, groups_for_new_port
from kilonova.network.ports.views import view
from kilonova.network.quotas import check_quota
from kilonova.network.resources import CHANGES_CHANNEL, write_transaction
from kilonova.network.schemas import SHOW_QUERY
from kilonova.network.subnets.model import Subnet, subnets_of_network
from kilonova.store import Reader, Transaction

log = logging.getLogger(__name__)
# The trunk sets these attributes of its subports.
_DEVICE = {"device_id", "device_owner", "binding:host_id"}
LISTING = Listing(Port, "ports", ATTRIBUTES, CUSTOM_FILTERS)


@api.route("GET", "/v2.0/ports", policy="get_port", query=LISTING.query_schema)
async def index(ctx: Context) -> Response:
    """List the project's ports, and all ports of the project's networks."""
    query = Query()
    if not sees_all(ctx, "get_port"):
        mine = query.arg(ctx.token.project_id)
        query.add(
            f"(r.project_id = {mine} OR EXISTS "
            f"(SELECT 1 FROM networks n WHERE n.id = r.network_id AND n.project_id = {mine}))"
        )
    if statuses := ctx.query.get("status"):
        filter_by_status(ctx, query, statuses)
    found = await model.load_details(ctx.db, await LISTING.fetch_page(ctx, query))
    shown = await with_current_status(ctx, ctx.db, found)
    return Response(await LISTING.response_body(ctx, (view(ctx, each) for each in shown)))


@api.route("GET", "/v2.0/ports/{port_id}", checks=["get_port"], query=SHOW_QUERY)
async def show(ctx: Context, port_id: str) -> Response:
    """Show a port."""
    port = await load(ctx, ctx.db, port_id)
    (details,) = await with_current_status(ctx, ctx.db, await model.load_details(ctx.db, [port]))
    return Response({"port": select_fields(ctx, view(ctx, details))})


async def load(ctx: Context, reader: Reader, port_id: str) -> Port:
    """The port, or 404 if it is missing or hidden from the caller."""
    port = await resources.find(reader, Port, port_id)
    if port is not None and not ctx.may("get_port", policy_target(port.project_id)):
        network = await resources.find(reader, Network, port.network_id)
        if not ctx.may("get_port", policy_target(port.project_id, network)):
            port = None
    if port is None:
        raise port_not_found(port_id)
    return port


@api.route("POST", "/v2.0/ports", checks=["create_port"], body=CREATE, status=201)
async def create(ctx: Context) -> Response:
    """Create one or several ports: all or none."""
    bodies = ctx.body.get("ports") or [ctx.body["port"]]
    networks: dict[str, tuple[Network, list[Subnet]]] = {}
    async with write_transaction(ctx) as tx:
        for network_id in sorted({body["network_id"] for body in bodies}):
            networks[network_id] = (await load_network(ctx, tx, network_id), await subnets_of_network(tx, network_id))
        created = [await _create(ctx, tx, body, *networks[body["network_id"]]) for body in bodies]
    shown = [view(ctx, details) for details in created]
    return Response({"ports": shown} if "ports" in ctx.body else {"port": shown[0]})


async def _create(
    ctx: Context, tx: Transaction, body: Mapping[str, Any], network: Network, subnets: Sequence[Subnet]
) -> PortDetails:
    project_id = requested_project(ctx, body)
    wanted = convert(body.get("fixed_ips"), list[FixedIpRequest] | None)
    _authorize(ctx, project_id, body, wanted or [], network)
    port = model.new_port(project_id, network, body, ctx.now)
    groups = await groups_for_new_port(tx, port, body, ctx.now)
    await check_quota(tx, project_id, "port")
    return await model.create(tx, ctx.services.address_cursors, port, subnets, wanted, groups)


def _authorize(
    ctx: Context, project_id: str, body: Mapping[str, Any], wanted: Sequence[FixedIpRequest], network: Network
) -> None:
    target = policy_target(project_id, network)
    ctx.authorize("create_port", target)
    defaults = {"device_id": "", "binding:vnic_type": "normal", "allowed_address_pairs": []}
    authorize_attributes(ctx, "create_port", body, target, defaults)
    authorize_fixed_ips(ctx, "create_port", wanted, target)
    authorize_device(ctx, body, network)
    authorize_network_use(ctx, project_id, network)


@api.route("PUT", "/v2.0/ports/{port_id}", checks=["update_port"], body=UPDATE)
async def update(ctx: Context, port_id: str) -> Response:
    """Change a port."""
    body = ctx.body["port"]
    try:
        async with ctx.db.transaction() as tx:
            port = await load(ctx, tx, port_id)
            port = await resources.lock(tx, Port, port_id) or port
            network = await resources.find(tx, Network, port.network_id)
            target = policy_target(port.project_id, network)
            ctx.authorize("update_port", target)
            if_match = ctx.headers.get("if-match")
            if if_match is not None and if_match != f"revision_number={port.revision_number}":
                raise revision_mismatch(if_match, port.revision_number)
            authorize_attributes(ctx, "update_port", body, target)
            authorize_device(ctx, body, network, port)
            if port.device_owner == trunk_details.SUBPORT_OWNER and (body.keys() & _DEVICE):
                await trunk_details.check_in_no_trunk(tx, port_id)
            (details,) = await model.load_details(tx, [port])
            wanted = convert(body.get("fixed_ips") or [], list[FixedIpRequest])
            authorize_fixed_ips(ctx, "update_port", wanted, target, details.fixed_ips)
            details = await apply_update(tx, ctx.services.address_cursors, details, body, ctx.now)
            (details,) = await with_current_status(ctx, tx, [details])
            tx.notify(CHANGES_CHANNEL)
    except store.Conflict as error:
        if error.kind != "unique":
            raise conflict("RetryRequest", "A security group was deleted meanwhile; try again.") from None
        raise conflict("MacAddressInUse", f"The mac address {body.get('mac_address')} is in use.") from None
    return Response({"port": view(ctx, details)})


@api.route("DELETE", "/v2.0/ports/{port_id}", checks=["delete_port"], status=204)
async def delete(ctx: Context, port_id: str) -> Response:
    """Delete a port."""
    async with write_transaction(ctx) as tx:
        port = await load(ctx, tx, port_id)
        if not ctx.may("delete_port", policy_target(port.project_id)):
            network = await resources.find(tx, Network, port.network_id)
            ctx.authorize("delete_port", policy_target(port.project_id, network))
        if port.device_owner in model.SERVICE_OWNERS:
            raise conflict(
                "ServicePortInUse",
                f"Port {port_id} cannot be deleted directly via the port API: has device owner {port.device_owner}.",
            )
        await trunk_details.check_in_no_trunk(tx, port_id)
        await model.remove(tx, port_id)
    await _notify_compute(ctx, port)
    return Response()


async def _notify_compute(ctx: Context, port: Port) -> None:
    """Send compute `network-vif-deleted`, unless compute deleted the port itself. A failure is only logged."""
    compute = getattr(ctx.services, "compute", None)
    if compute is None or not port.device_owner.startswith("compute:") or "service" in ctx.token.roles:
        return
    try:
        token = await ctx.services.identity.token()
        await compute.send_event("network-vif-deleted", port.device_id, port.id, token)
    except (Refused, Unreachable) as error:
        log.warning("compute was not notified of a deleted port: %s", error)
