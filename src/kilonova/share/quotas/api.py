"""Routes of quota sets and limits. Resources that the service does not have are 0."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.api import multi
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import BOOLEAN, STRING, Schema, closed_object, is_true
from kilonova.share.api import api
from kilonova.share.quotas import model

SET = "/quota-sets/{project_id}"
SHOW, UPDATE, DELETE = "quota_set:show", "quota_set:update", "quota_set:delete"
_LIMIT: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": -1, "maximum": 0x7FFFFFFF},
        {"type": "string", "pattern": "^(-1|[0-9]{1,9})$"},
    ]
}
_BODY = closed_object(
    {"quota_set": closed_object({**dict.fromkeys(model.RESOURCES, _LIMIT), "tenant_id": STRING, "force": BOOLEAN})},
    ["quota_set"],
)
_QUERY: dict[str, Schema] = {"*": multi(STRING)}
_ABSENT = (
    *("snapshots", "snapshot_gigabytes", "share_networks", "share_groups", "share_group_snapshots"),
    *("share_replicas", "replica_gigabytes"),
)
_MAXIMA = {"maxTotalShares": "shares", "maxTotalShareGigabytes": "gigabytes"}
_USED = {"totalSharesUsed": "shares", "totalShareGigabytesUsed": "gigabytes"}
_ABSENT_LIMITS = (
    *("maxTotalShareSnapshots", "maxTotalSnapshotGigabytes", "maxTotalShareNetworks", "maxTotalShareReplicas"),
    *("maxTotalReplicaGigabytes", "totalShareSnapshotsUsed", "totalSnapshotGigabytesUsed", "totalShareNetworksUsed"),
    *("totalShareReplicasUsed", "totalReplicaGigabytesUsed"),
)


@api.route("GET", "/limits", authenticated=True)
async def limits(ctx: Context) -> Response:
    """Show the limits and the usage of the own project."""
    project_id = ctx.token.project_id or ""
    limit = await model.limits(ctx.db, project_id, ctx.services.config)
    used = await model.usage(ctx.db, project_id)
    absolute = {key: limit[resource] for key, resource in _MAXIMA.items()}
    absolute |= {key: used[resource] for key, resource in _USED.items()}
    return Response({"limits": {"rate": [], "absolute": absolute | dict.fromkeys(_ABSENT_LIMITS, 0)}})


@api.route("GET", SET, checks=[SHOW], query=_QUERY)
async def show(ctx: Context, project_id: str) -> Response:
    """Show the quota of a project."""
    await _check_project(ctx, project_id, SHOW)
    return Response({"quota_set": _view(project_id, await model.limits(ctx.db, project_id, ctx.services.config))})


@api.route("GET", SET + "/detail", checks=[SHOW], query=_QUERY)
async def detail(ctx: Context, project_id: str) -> Response:
    """Show the quota of a project with its usage."""
    await _check_project(ctx, project_id, SHOW)
    used = await model.usage(ctx.db, project_id)
    limits = _view(project_id, await model.limits(ctx.db, project_id, ctx.services.config))
    return Response(
        {
            "quota_set": {
                "id": project_id,
                **{
                    name: {"limit": limit, "in_use": used.get(name, 0), "reserved": 0}
                    for name, limit in limits.items()
                    if name != "id"
                },
            }
        }
    )


@api.route("GET", SET + "/defaults", checks=[SHOW], query=_QUERY)
async def defaults(ctx: Context, project_id: str) -> Response:
    """Show the default quota."""
    ctx.authorize(SHOW, {"project_id": project_id})
    return Response({"quota_set": _view(project_id, model.defaults(ctx.services.config))})


@api.route("PUT", SET, checks=[UPDATE], body=_BODY, query=_QUERY)
async def update(ctx: Context, project_id: str) -> Response:
    """Set limits of a project. A limit below the usage is refused without `force`."""
    await _check_project(ctx, project_id, UPDATE)
    body = ctx.body["quota_set"]
    given = {resource: int(body[resource]) for resource in model.RESOURCES if resource in body}
    async with ctx.db.transaction() as tx:
        await model.hold(tx, project_id)
        if not is_true(body.get("force")):
            _check_used(given, await model.usage(tx, project_id))
        await model.set_limits(tx, project_id, given)
        limits = await model.limits(tx, project_id, ctx.services.config)
    return Response({"quota_set": _view(project_id, limits)})


@api.route("DELETE", SET, checks=[DELETE], query=_QUERY, status=202)
async def delete(ctx: Context, project_id: str) -> None:
    """Reset the quota of a project to the defaults."""
    ctx.authorize(DELETE, {"project_id": project_id})
    async with ctx.db.transaction() as tx:
        await model.reset(tx, project_id)


def _view(project_id: str, limits: dict[str, int]) -> dict[str, object]:
    return {"id": project_id, **limits, **dict.fromkeys(_ABSENT, 0)}


def _check_used(given: dict[str, int], used: dict[str, int]) -> None:
    for resource, limit in given.items():
        if 0 <= limit < used[resource]:
            raise BadRequest(f"Quota limit {limit} for {resource} must be at least the usage, {used[resource]}.")


async def _check_project(ctx: Context, project_id: str, rule: str) -> None:
    """Refuse an unknown project: its quota would never apply."""
    ctx.authorize(rule, {"project_id": project_id})
    if project_id != ctx.token.project_id and not await ctx.services.identity.has_project(project_id):
        raise BadRequest(f"Project ID {project_id[:80]} is not a valid project.")
