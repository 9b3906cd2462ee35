"""Quotas: their routes and rows. Usage is counted in the transaction that creates a resource."""

from __future__ import annotations

from collections.abc import Mapping

from kilonova.http import Context, Response
from kilonova.http.errors import NotFound
from kilonova.network.api import api
from kilonova.network.authorization import policy_target
from kilonova.network.errors import conflict, over_quota
from kilonova.network.schemas import object_schema
from kilonova.store import Reader, Transaction

UNLIMITED = -1
# Compute's quotas bound the number of ports.
DEFAULTS = {
    "network": 1000,
    "subnet": 1000,
    "port": UNLIMITED,
    "router": 1000,
    "floatingip": 1000,
    "security_group": 1000,
    "security_group_rule": 10000,
}
_TABLES = {
    "network": "networks",
    "subnet": "subnets",
    "port": "ports",
    "router": "routers",
    "floatingip": "floating_ips",
    "security_group": "security_groups",
    "security_group_rule": "security_group_rules",
}
_LIMIT_SCHEMA = {"type": "integer", "minimum": -1, "maximum": 2**31 - 1}
_IGNORED = {"tenant_id": {"type": "string"}, "project_id": {"type": "string"}}
# A limit may be below the usage unless `check_limit` is true. `force` is accepted without effect.
_CHECKS = {"check_limit": {"type": "boolean"}, "force": {"type": "boolean"}}
UPDATE = object_schema(
    {"quota": object_schema({**dict.fromkeys(DEFAULTS, _LIMIT_SCHEMA), **_IGNORED, **_CHECKS})}, ("quota",)
)
ONE = "/v2.0/quotas/{project_id}"
_LIMIT = "SELECT maximum FROM network_quotas WHERE project_id = $1 AND resource = $2"
_SET_LIMIT = """
INSERT INTO network_quotas (project_id, resource, maximum) VALUES ($1, $2, $3)
ON CONFLICT (project_id, resource) DO UPDATE SET maximum = excluded.maximum
"""


async def check_quota(tx: Transaction, project_id: str, resource: str, count: int = 1) -> None:
    """Refuse `count` more of the resource above the quota. Locks the quota until the transaction ends."""
    limit = await tx.fetch_value(_LIMIT, project_id, resource)
    if limit is None:
        limit = DEFAULTS[resource]
    if limit < 0:
        return
    await tx.lock(f"network quota {resource} {project_id}")
    if await count_used(tx, project_id, resource) + count > limit:
        raise over_quota(resource)


async def count_used(reader: Reader, project_id: str, resource: str) -> int:
    count = await reader.fetch_value(f"SELECT count(*) FROM {_TABLES[resource]} WHERE project_id = $1", project_id)
    return int(count)


async def limits(reader: Reader, project_id: str) -> dict[str, int]:
    rows = await reader.fetch("SELECT resource, maximum FROM network_quotas WHERE project_id = $1", project_id)
    return DEFAULTS | {row["resource"]: row["maximum"] for row in rows}


@api.route("GET", "/v2.0/quotas", policy="update_quota")
async def index(ctx: Context) -> Response:
    """List the quotas of projects that differ from the defaults."""
    found = await ctx.db.fetch("SELECT DISTINCT project_id FROM network_quotas ORDER BY project_id")
    quotas = []
    for project_id in [row["project_id"] for row in found]:
        quotas.append({**await limits(ctx.db, project_id), "project_id": project_id, "tenant_id": project_id})
    return Response({"quotas": quotas})


@api.route("GET", ONE, checks=["get_quota"])
async def show(ctx: Context, project_id: str) -> Response:
    """Show a project's quota."""
    ctx.authorize("get_quota", policy_target(project_id))
    return Response({"quota": await limits(ctx.db, project_id)})


@api.route("GET", ONE + "/default", checks=["get_quota"])
async def show_default(ctx: Context, project_id: str) -> Response:
    """Show the default quota."""
    ctx.authorize("get_quota", policy_target(project_id))
    return Response({"quota": DEFAULTS})


@api.route("GET", ONE + "/details", checks=["get_quota"])
@api.route("GET", ONE + "/details.json", checks=["get_quota"])
async def show_details(ctx: Context, project_id: str) -> Response:
    """Show a project's quota and usage."""
    ctx.authorize("get_quota", policy_target(project_id))
    details = {
        resource: {"limit": limit, "used": await count_used(ctx.db, project_id, resource), "reserved": 0}
        for resource, limit in (await limits(ctx.db, project_id)).items()
    }
    return Response({"quota": details})


@api.route("PUT", ONE, policy="update_quota", body=UPDATE)
async def update(ctx: Context, project_id: str) -> Response:
    """Change a project's quota. With `check_limit`, limits below the usage are refused."""
    changes = {name: value for name, value in ctx.body["quota"].items() if name in DEFAULTS}
    async with ctx.db.transaction() as tx:
        if ctx.body["quota"].get("check_limit", False):
            await _check_usage(tx, project_id, changes)
        for resource, maximum in changes.items():
            await tx.execute(_SET_LIMIT, project_id, resource, maximum)
        return Response({"quota": await limits(tx, project_id)})


async def _check_usage(tx: Transaction, project_id: str, changes: Mapping[str, int]) -> None:
    for resource, maximum in changes.items():
        await tx.lock(f"network quota {resource} {project_id}")
        used = await count_used(tx, project_id, resource)
        if UNLIMITED < maximum < used:
            raise conflict("InvalidQuotaValue", f"The limit {maximum} of {resource} is below the usage {used}.")


@api.route("DELETE", ONE, policy="delete_quota", status=204)
async def delete(ctx: Context, project_id: str) -> Response:
    """Reset a project's quota to the defaults."""
    async with ctx.db.transaction() as tx:
        if not await tx.execute("DELETE FROM network_quotas WHERE project_id = $1", project_id):
            raise NotFound(f"Quota for tenant {project_id} could not be found.", code="TenantQuotaNotFound")
    return Response()
