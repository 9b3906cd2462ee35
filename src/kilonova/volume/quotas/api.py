"""Routes of quota sets, quota classes and limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kilonova.http import Context, Response, View, col
from kilonova.http.api import multi
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import BOOLEAN, STRING, Schema, closed_object, is_true
from kilonova.volume.api import api
from kilonova.volume.quotas import model

LIMIT: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": -1, "maximum": 0x7FFFFFFF},
        {"type": "string", "pattern": "^(-1|[0-9]{1,9})$"},
    ]
}
# Volume types have their own limits, so the keys depend on the database. Old clients send the project's id too.
_LIMITS: Schema = {
    "type": "object",
    "properties": {"tenant_id": STRING},
    "additionalProperties": LIMIT,
    "maxProperties": 1000,
}
NOT_LIMITS = frozenset({"tenant_id"})

UPDATE = closed_object({"quota_set": _LIMITS}, ["quota_set"])
UPDATE_CLASS = closed_object({"quota_class_set": _LIMITS}, ["quota_class_set"])
SHOW_QUERY: dict[str, Schema] = {"usage": BOOLEAN, "*": multi(STRING)}
UPDATE_QUERY: dict[str, Schema] = {"skip_validation": BOOLEAN, "*": multi(STRING)}
LIMITS_QUERY: dict[str, Schema] = {"project_id": STRING, "*": multi(STRING)}


_INTEGER = {"type": "integer"}
_USED_RULE = "limits_extension:used_limits"
# The resource of each key.
MAXIMA = {
    "maxTotalVolumes": "volumes",
    "maxTotalSnapshots": "snapshots",
    "maxTotalVolumeGigabytes": "gigabytes",
    "maxTotalBackups": "backups",
    "maxTotalBackupGigabytes": "backup_gigabytes",
}
USED = {
    "totalVolumesUsed": "volumes",
    "totalSnapshotsUsed": "snapshots",
    "totalGigabytesUsed": "gigabytes",
    "totalBackupsUsed": "backups",
    "totalBackupGigabytesUsed": "backup_gigabytes",
}

api.view(
    View(
        "absolute limits",
        {
            **{key: col(resource, _INTEGER) for key, resource in MAXIMA.items()},
            **{key: col(f"{resource} used", _INTEGER, _USED_RULE) for key, resource in USED.items()},
        },
    )
)


SET = "/os-quota-sets/{project_id}"
CLASS = "/os-quota-class-sets/{name}"
SHOW = "volume_extension:quotas:show"
OTHER_PROJECT = api.behaviour("limits of other projects")


@api.route("GET", SET, checks=[SHOW], query=SHOW_QUERY)
async def show(ctx: Context, project_id: str) -> Response:
    """Show the quota of a project, with `usage` also its usage."""
    ctx.authorize(SHOW, {"project_id": project_id})
    await _check_project(ctx, project_id)
    shown: dict[str, Any] = dict(await model.limits(ctx.db, project_id, ctx.services.config))
    if is_true(ctx.query_one("usage")):
        used = await model.usage(ctx.db, project_id)
        shown = {name: {"limit": limit, "in_use": used.get(name, 0), "reserved": 0} for name, limit in shown.items()}
    return Response({"quota_set": {"id": project_id, **shown}})


@api.route("GET", SET + "/defaults", checks=[SHOW])
async def defaults(ctx: Context, project_id: str) -> Response:
    """Show the default quota."""
    ctx.authorize(SHOW, {"project_id": project_id})
    limits = await model.class_limits(ctx.db, model.DEFAULT_CLASS, ctx.services.config)
    return Response({"quota_set": {"id": project_id, **limits}})


@api.route("PUT", SET, policy="volume_extension:quotas:update", body=UPDATE, query=UPDATE_QUERY)
async def update(ctx: Context, project_id: str) -> Response:
    """Update the quota of a project. A limit below the usage is refused if `skip_validation` is false."""
    await _check_project(ctx, project_id)
    given, config = _integers(ctx.body["quota_set"]), ctx.services.config
    async with ctx.db.transaction() as tx:
        await model.hold(tx, project_id)
        _check_known(given, await model.limits(tx, project_id, config))
        if not is_true(ctx.query_one("skip_validation") or "true"):
            _check_used(given, await model.usage(tx, project_id))
        await model.set_limits(tx, project_id, given)
        limits = await model.limits(tx, project_id, config)
    return Response({"quota_set": limits})


@api.route("DELETE", SET, policy="volume_extension:quotas:delete")
async def delete(ctx: Context, project_id: str) -> None:
    """Reset the quota of a project to the defaults."""
    async with ctx.db.transaction() as tx:
        await model.reset(tx, project_id)


@api.route("GET", CLASS, policy="volume_extension:quota_classes:get")
async def show_class(ctx: Context, name: str) -> Response:
    """Show a quota class. The class `default` applies to projects without own limits."""
    limits = await model.class_limits(ctx.db, name, ctx.services.config)
    return Response({"quota_class_set": {"id": name, **limits}})


@api.route("PUT", CLASS, policy="volume_extension:quota_classes:update", body=UPDATE_CLASS)
async def update_class(ctx: Context, name: str) -> Response:
    """Update a quota class."""
    if not 1 <= len(name) <= 255:
        raise BadRequest("The name of a quota class must have 1 to 255 characters.")
    given, config = _integers(ctx.body["quota_class_set"]), ctx.services.config
    async with ctx.db.transaction() as tx:
        _check_known(given, await model.class_limits(tx, name, config))
        await model.set_class_limits(tx, name, given)
        limits = await model.class_limits(tx, name, config)
    return Response({"quota_class_set": limits})


@api.route("GET", "/limits", authenticated=True, checks=["limits_extension:used_limits", SHOW], query=LIMITS_QUERY)
async def limits(ctx: Context) -> Response:
    """Show the limits and the usage of the own project. From 3.39 on administrators may name another project."""
    project_id = ctx.token.project_id or ""
    requested = ctx.query_one("project_id")
    if requested and requested != project_id and ctx.has_behaviour(OTHER_PROJECT):
        ctx.authorize(SHOW, {"project_id": requested})
        project_id = requested
    row = await model.limits(ctx.db, project_id, ctx.services.config)
    used = dict.fromkeys(USED.values(), 0) | await model.usage(ctx.db, project_id)
    row |= {f"{resource} used": number for resource, number in used.items()}
    return Response({"limits": {"rate": [], "absolute": ctx.render("absolute limits", row)}})


def _integers(body: Mapping[str, Any]) -> dict[str, int]:
    return {resource: int(limit) for resource, limit in body.items() if resource not in NOT_LIMITS}


def _check_known(given: Mapping[str, int], known: Iterable[str]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise BadRequest(f"Bad key(s) in quota set: {', '.join(unknown)[:200]}")


def _check_used(given: Mapping[str, int], used: Mapping[str, int]) -> None:
    for resource, limit in given.items():
        if 0 <= limit < used.get(resource, 0):
            raise BadRequest(
                f"Quota limit {limit} for {resource} must be greater than or equal to the usage, {used[resource]}."
            )


async def _check_project(ctx: Context, project_id: str) -> None:
    """Refuse an unknown project: its quota would never apply."""
    if project_id == ctx.token.project_id:
        return
    if not await ctx.services.identity.has_project(project_id):
        raise BadRequest(f"Project ID {project_id[:80]} is not a valid project.")
