"""Routes of the auto-allocated topology: a project's network and router, created on demand."""

from __future__ import annotations

from typing import ClassVar

from msgspec import structs

from kilonova.http import Context, Response
from kilonova.http.errors import NotFound
from kilonova.network import resources
from kilonova.network.addresses import Cursors
from kilonova.network.api import api
from kilonova.network.authorization import policy_target
from kilonova.network.networks import model as networks
from kilonova.network.networks.model import Network
from kilonova.network.quotas import check_quota
from kilonova.network.resources import write_transaction
from kilonova.network.routers import model as routers
from kilonova.network.routers.model import Router
from kilonova.network.schemas import SHOW_QUERY
from kilonova.network.subnets import model as subnets
from kilonova.store import Reader, Transaction
from kilonova.store.records import Record

NETWORK_NAME, SUBNET_NAME, ROUTER_NAME = "auto_allocated_network", "auto_allocated_subnet_v4", "auto_allocated_router"
# Does not overlap the seeded private network, so that one server can be on both.
CIDR = "10.64.0.0/20"
_PATH = "/v2.0/auto-allocated-topology/{project_id}"


class AutoTopology(Record, frozen=True):
    table: ClassVar[str] = "auto_topologies"

    project_id: str
    network_id: str
    router_id: str | None = None


@api.route("GET", _PATH, checks=["get_auto_allocated_topology"], query=SHOW_QUERY)
async def show(ctx: Context, project_id: str) -> Response:
    """Show a project's automatic network, created if missing; `fields=dry-run` only checks that it can be created."""
    project_id = _requested_project(ctx, project_id)
    ctx.authorize("get_auto_allocated_topology", policy_target(project_id))
    if "dry-run" in ctx.query.get("fields", ()):
        return Response(_view("dry-run=pass", project_id))
    topology = await _find(ctx.db, project_id)
    if topology is None:
        async with write_transaction(ctx) as tx:
            await tx.lock(f"auto-allocated topology {project_id}")
            topology = await _find(tx, project_id)
            if topology is None:
                topology = await _create(tx, ctx.services.address_cursors, project_id, ctx.now)
    return Response(_view(topology.network_id, project_id))


async def _find(reader: Reader, project_id: str) -> AutoTopology | None:
    row = await reader.fetch_one("SELECT * FROM auto_topologies WHERE project_id = $1", project_id)
    return AutoTopology.decode_optional(row)


def _requested_project(ctx: Context, project_id: str) -> str:
    if project_id in ("None", "null", "-"):
        project_id = ctx.token.project_id or ""
    return project_id


def _view(topology_id: str, project_id: str) -> dict[str, dict[str, str]]:
    return {"auto_allocated_topology": {"id": topology_id, "tenant_id": project_id, "project_id": project_id}}


async def _create(tx: Transaction, cursors: Cursors, project_id: str, now: float) -> AutoTopology:
    await check_quota(tx, project_id, "network")
    await check_quota(tx, project_id, "subnet")
    network = await networks.create(tx, networks.new_network(project_id, {"name": NETWORK_NAME}, now))
    body = {"name": SUBNET_NAME, "network_id": network.id, "ip_version": 4, "cidr": CIDR}
    subnet = await subnets.create(tx, subnets.new_subnet(project_id, body, now))
    found = await tx.fetch_one(
        "SELECT * FROM networks WHERE external AND admin_state_up ORDER BY is_default DESC, created_at, id LIMIT 1"
    )
    topology = AutoTopology(project_id, network.id)
    if found is not None:
        await check_quota(tx, project_id, "router")
        router = routers.new_router(project_id, {"name": ROUTER_NAME}, now)
        await resources.insert(tx, router)
        router = await routers.set_gateway(tx, cursors, router, Network.decode(found), {}, now)
        await routers.add_subnet(tx, cursors, router, subnet, network, now)
        topology = structs.replace(topology, router_id=router.id)
    await resources.insert(tx, topology)
    return topology


@api.route("DELETE", _PATH, checks=["delete_auto_allocated_topology"], status=204)
async def delete(ctx: Context, project_id: str) -> Response:
    """Delete a project's automatic network and router; refused while ports are on the network."""
    project_id = _requested_project(ctx, project_id)
    ctx.authorize("delete_auto_allocated_topology", policy_target(project_id))
    async with write_transaction(ctx) as tx:
        await tx.lock(f"auto-allocated topology {project_id}")
        topology = await _find(tx, project_id)
        if topology is None:
            raise NotFound(
                f"Project {project_id} has no auto-allocated topology.", code="AutoAllocatedTopologyNotFound"
            )
        await _delete_router(tx, topology, ctx.now)
        await networks.remove(tx, ctx.services.address_cursors, topology.network_id)
    return Response()


async def _delete_router(tx: Transaction, topology: AutoTopology, now: float) -> None:
    router = await resources.lock(tx, Router, topology.router_id) if topology.router_id else None
    if router is None:
        return
    for details in await routers.interfaces(tx, router.id):
        if details.port.network_id == topology.network_id:
            await routers.remove_interface(tx, router, details)
    await routers.remove(tx, router, now)
