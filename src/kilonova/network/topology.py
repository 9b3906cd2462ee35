"""/v2.0/auto-allocated-topology: a network of its own for a project that has none, made on demand."""

from __future__ import annotations

from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound
from kilonova.network import rows
from kilonova.network.access import target_of, writing
from kilonova.network.api import api
from kilonova.network.networks import model as networks
from kilonova.network.quotas.model import make_room
from kilonova.network.routers import model as routers
from kilonova.network.schema import SHOW_KEYS
from kilonova.network.subnets import model as subnets
from kilonova.store import Row, Transaction

NETWORK, SUBNET, ROUTER = "auto_allocated_network", "auto_allocated_subnet_v4", "auto_allocated_router"
# Apart from the first shared network's range, so that one server can be on both.
CIDR = "10.64.0.0/20"
_FIND = "SELECT * FROM auto_topologies WHERE project_id = $1"


@api.route("GET", "/v2.0/auto-allocated-topology/{project_id}", checks=["get_auto_allocated_topology"], query=SHOW_KEYS)
async def show(ctx: Context, project_id: str) -> Answer:
    """The project's automatic network, made if there is none; with `fields=dry-run` only whether that could be done."""
    project_id = _project(ctx, project_id)
    ctx.authorize("get_auto_allocated_topology", target_of(project_id))
    if "dry-run" in ctx.query.get("fields", ()):
        return Answer(_shown("dry-run=pass", project_id))
    topology = await ctx.db.fetch_one(_FIND, project_id)
    if topology is None:
        async with writing(ctx) as tx:
            await tx.hold(f"auto-allocated topology {project_id}")
            topology = await tx.fetch_one(_FIND, project_id) or await _make(tx, project_id, ctx.now)
    return Answer(_shown(topology["network_id"], project_id))


def _project(ctx: Context, project_id: str) -> str:
    if project_id in ("None", "null", "-"):
        project_id = ctx.token.project_id or ""
    return project_id


def _shown(topology_id: str, project_id: str) -> dict[str, dict[str, str]]:
    return {"auto_allocated_topology": {"id": topology_id, "tenant_id": project_id, "project_id": project_id}}


async def _make(tx: Transaction, project_id: str, now: float) -> Row:
    await make_room(tx, project_id, "network")
    await make_room(tx, project_id, "subnet")
    network = await networks.create(tx, networks.draft(project_id, {"name": NETWORK}, now))
    wanted = {"name": SUBNET, "network_id": network["id"], "ip_version": 4, "cidr": CIDR}
    subnet = await subnets.create(tx, subnets.draft(project_id, wanted, now))
    external = await tx.fetch_one(
        "SELECT * FROM networks WHERE external AND admin_state_up ORDER BY is_default DESC, created_at, id LIMIT 1"
    )
    topology: Row = {"project_id": project_id, "network_id": network["id"], "router_id": None}
    if external is not None:
        await make_room(tx, project_id, "router")
        router = routers.draft(project_id, {"name": ROUTER}, now)
        await rows.insert(tx, "routers", router)
        router = await routers.set_gateway(tx, router, external, {}, now)
        await routers.add_subnet(tx, router, subnet, network, now)
        topology["router_id"] = router["id"]
    await rows.insert(tx, "auto_topologies", topology)
    return topology


@api.route(
    "DELETE",
    "/v2.0/auto-allocated-topology/{project_id}",
    checks=["delete_auto_allocated_topology"],
    status=204,
)
async def delete(ctx: Context, project_id: str) -> Answer:
    """Delete the project's automatic network with its router, unless a port is on it."""
    project_id = _project(ctx, project_id)
    ctx.authorize("delete_auto_allocated_topology", target_of(project_id))
    async with writing(ctx) as tx:
        await tx.hold(f"auto-allocated topology {project_id}")
        topology = await tx.fetch_one(_FIND, project_id)
        if topology is None:
            raise NotFound(
                f"There is no auto-allocated topology of project {project_id}.", code="AutoAllocatedTopologyNotFound"
            )
        await _drop_router(tx, topology, ctx.now)
        await networks.remove(tx, topology["network_id"])
    return Answer()


async def _drop_router(tx: Transaction, topology: Row, now: float) -> None:
    router = await rows.lock(tx, "routers", topology["router_id"]) if topology["router_id"] else None
    if router is None:
        return
    for port in await routers.interfaces(tx, router["id"]):
        if port.row["network_id"] == topology["network_id"]:
            await routers.remove_interface(tx, router, port)
    await routers.remove(tx, router, now)
