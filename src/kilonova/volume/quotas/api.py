"""Routes of quota sets, quota classes and limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest
from kilonova.http.pieces import is_true
from kilonova.volume.api import api
from kilonova.volume.quotas import model, schemas, views

SET = "/os-quota-sets/{project_id}"
CLASS = "/os-quota-class-sets/{name}"
SHOW = "volume_extension:quotas:show"
OTHER_PROJECT = "limits are shown of other projects"


@api.route("GET", SET, checks=[SHOW], query=schemas.SHOW)
async def show(ctx: Context, project_id: str) -> Answer:
    """Show the quota of a project, and (with `usage`) what is used."""
    ctx.authorize(SHOW, {"project_id": project_id})
    await _check_project(ctx, project_id)
    shown: dict[str, Any] = dict(await model.limits(ctx.db, project_id, ctx.services.config))
    if is_true(ctx.query_one("usage")):
        used = await model.usage(ctx.db, project_id)
        shown = {name: {"limit": most, "in_use": used.get(name, 0), "reserved": 0} for name, most in shown.items()}
    return Answer({"quota_set": {"id": project_id, **shown}})


@api.route("GET", SET + "/defaults", checks=[SHOW])
async def defaults(ctx: Context, project_id: str) -> Answer:
    """Show the default quota."""
    ctx.authorize(SHOW, {"project_id": project_id})
    limits = await model.class_limits(ctx.db, model.DEFAULT_CLASS, ctx.services.config)
    return Answer({"quota_set": {"id": project_id, **limits}})


@api.route("PUT", SET, policy="volume_extension:quotas:update", body=schemas.UPDATE, query=schemas.CHANGE)
async def update(ctx: Context, project_id: str) -> Answer:
    """Change the quota of a project. A limit may be below what is used, unless `skip_validation` is false."""
    await _check_project(ctx, project_id)
    given, config = _whole(ctx.body["quota_set"]), ctx.services.config
    async with ctx.db.transaction() as tx:
        await model.hold(tx, project_id)
        _check_known(given, await model.limits(tx, project_id, config))
        if not is_true(ctx.query_one("skip_validation") or "true"):
            _check_used(given, await model.usage(tx, project_id))
        await model.set_limits(tx, project_id, given)
        limits = await model.limits(tx, project_id, config)
    return Answer({"quota_set": limits})


@api.route("DELETE", SET, policy="volume_extension:quotas:delete")
async def delete(ctx: Context, project_id: str) -> None:
    """Put the quota of a project back to the defaults."""
    async with ctx.db.transaction() as tx:
        await model.reset(tx, project_id)


@api.route("GET", CLASS, policy="volume_extension:quota_classes:get")
async def show_class(ctx: Context, name: str) -> Answer:
    """Show a quota class; `default` is what projects without limits of their own have."""
    limits = await model.class_limits(ctx.db, name, ctx.services.config)
    return Answer({"quota_class_set": {"id": name, **limits}})


@api.route("PUT", CLASS, policy="volume_extension:quota_classes:update", body=schemas.UPDATE_CLASS)
async def update_class(ctx: Context, name: str) -> Answer:
    """Change a quota class."""
    if not 1 <= len(name) <= 255:
        raise BadRequest("The name of a quota class has 1 to 255 characters.")
    given, config = _whole(ctx.body["quota_class_set"]), ctx.services.config
    async with ctx.db.transaction() as tx:
        _check_known(given, await model.class_limits(tx, name, config))
        await model.set_class_limits(tx, name, given)
        limits = await model.class_limits(tx, name, config)
    return Answer({"quota_class_set": limits})


@api.route("GET", "/limits", checks=[SHOW], query=schemas.LIMITS)
async def limits(ctx: Context) -> Answer:
    """Show the limits of the own project, and what it uses; from 3.39 on administrators may name another."""
    project_id = ctx.token.project_id or ""
    asked = ctx.query_one("project_id")
    if asked and asked != project_id and ctx.behaves(OTHER_PROJECT):
        ctx.authorize(SHOW, {"project_id": asked})
        project_id = asked
    row = await model.limits(ctx.db, project_id, ctx.services.config)
    used = dict.fromkeys(views.USED.values(), 0) | await model.usage(ctx.db, project_id)
    row |= {f"{resource} used": number for resource, number in used.items()}
    return Answer({"limits": {"rate": [], "absolute": ctx.render("absolute limits", row)}})


def _whole(body: Mapping[str, Any]) -> dict[str, int]:
    return {resource: int(limit) for resource, limit in body.items() if resource not in schemas.NOT_LIMITS}


def _check_known(given: Mapping[str, int], known: Iterable[str]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise BadRequest(f"Bad key(s) in quota set: {', '.join(unknown)[:200]}")


def _check_used(given: Mapping[str, int], used: Mapping[str, int]) -> None:
    for resource, limit in given.items():
        if 0 <= limit < used.get(resource, 0):
            raise BadRequest(
                f"Quota limit {limit} for {resource} must be greater than or equal to what is used, {used[resource]}."
            )


async def _check_project(ctx: Context, project_id: str) -> None:
    """Quotas of a misspelt project would be kept and never hold."""
    if project_id == ctx.token.project_id:
        return
    if not await ctx.services.identity.has_project(project_id):
        raise BadRequest(f"Project ID {project_id[:80]} is not a valid project.")
