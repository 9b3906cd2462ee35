"""Routes of quota sets and quota classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.compute.api import api
from kilonova.compute.quotas import model, schemas, views
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest
from kilonova.http.pieces import is_true

__all__ = ["views"]

SET = "/os-quota-sets/{project_id}"
CLASS = "/os-quota-class-sets/{name}"
SHOW = "os_compute_api:os-quota-sets:show"
DETAIL = "os_compute_api:os-quota-sets:detail"


@api.route("GET", SET, checks=[SHOW], query=schemas.OF_USER, shows=("quota_set", "quota set", False))
async def show(ctx: Context, project_id: str) -> Answer:
    """Show the quota of a project, or of a user in it."""
    ctx.authorize(SHOW, {"project_id": project_id})
    await _check_project(ctx, project_id)
    limits = await model.limits(ctx.db, project_id, ctx.services.config, _user(ctx))
    return Answer({"quota_set": ctx.render("quota set", {"id": project_id, **limits})})


@api.route("GET", SET + "/detail", checks=[DETAIL], query=schemas.OF_USER, shows=("quota_set", "quota detail", False))
async def detail(ctx: Context, project_id: str) -> Answer:
    """Show the quota of a project, or of a user in it, and what is used."""
    ctx.authorize(DETAIL, {"project_id": project_id})
    await _check_project(ctx, project_id)
    user_id = _user(ctx)
    limits = await model.limits(ctx.db, project_id, ctx.services.config, user_id)
    used = await model.usage(ctx.db, project_id, user_id)
    rows = {name: {"limit": limit, "in_use": used.get(name, 0), "reserved": 0} for name, limit in limits.items()}
    return Answer({"quota_set": ctx.render("quota detail", {"id": project_id, **rows})})


@api.route(
    "GET",
    SET + "/defaults",
    policy="os_compute_api:os-quota-sets:defaults",
    query={},
    shows=("quota_set", "quota set", False),
)
async def defaults(ctx: Context, project_id: str) -> Answer:
    """Show the default quota."""
    await _check_project(ctx, project_id)
    limits = await model.class_limits(ctx.db, model.DEFAULT_CLASS, ctx.services.config)
    return Answer({"quota_set": ctx.render("quota set", {"id": project_id, **limits})})


@api.route(
    "PUT",
    SET,
    policy="os_compute_api:os-quota-sets:update",
    body=schemas.UPDATE,
    query=schemas.OF_USER,
    shows=("quota_set", "new quota set", False),
)
async def update(ctx: Context, project_id: str) -> Answer:
    """Change the quota of a project, or of a user in it."""
    await _check_project(ctx, project_id)
    body = dict(ctx.body["quota_set"])
    force = is_true(body.pop("force", False))
    given, user_id, config = _whole(body), _user(ctx), ctx.services.config
    async with ctx.db.transaction() as tx:
        await tx.hold(f"quota:{project_id}")
        if not force:
            _check_used(given, await model.usage(tx, project_id, user_id))
        if user_id is None:
            await model.set_limits(tx, project_id, given)
        else:
            if not force:
                _check_project_limits(given, await model.limits(tx, project_id, config))
            await model.set_user_limits(tx, project_id, user_id, given)
        limits = await model.limits(tx, project_id, config, user_id)
    return Answer({"quota_set": ctx.render("new quota set", limits)})


@api.route("DELETE", SET, policy="os_compute_api:os-quota-sets:delete", query=schemas.OF_USER, status=202)
async def delete(ctx: Context, project_id: str) -> None:
    """Put the quota of a project back to the defaults, or that of a user back to the project's."""
    user_id = _user(ctx)
    async with ctx.db.transaction() as tx:
        await tx.hold(f"quota:{project_id}")
        if user_id is None:
            await model.reset(tx, project_id)
        else:
            await model.reset_user(tx, project_id, user_id)


@api.route(
    "GET",
    CLASS,
    policy="os_compute_api:os-quota-class-sets:show",
    query={},
    shows=("quota_class_set", "quota class", False),
)
async def show_class(ctx: Context, name: str) -> Answer:
    """Show a quota class; `default` is what projects without limits of their own have."""
    limits = await model.class_limits(ctx.db, name, ctx.services.config)
    return Answer({"quota_class_set": ctx.render("quota class", {"id": name, **limits})})


@api.route(
    "PUT",
    CLASS,
    policy="os_compute_api:os-quota-class-sets:update",
    body=schemas.UPDATE_CLASS,
    query={},
    shows=("quota_class_set", "new quota class", False),
)
async def update_class(ctx: Context, name: str) -> Answer:
    """Change a quota class."""
    _check_class_name(name)
    async with ctx.db.transaction() as tx:
        await model.set_class_limits(tx, name, _whole(ctx.body["quota_class_set"]))
        limits = await model.class_limits(tx, name, ctx.services.config)
    return Answer({"quota_class_set": ctx.render("new quota class", limits)})


def _user(ctx: Context) -> str | None:
    return ctx.query_one("user_id") or None


def _whole(body: Mapping[str, Any]) -> dict[str, int]:
    return {resource: int(limit) for resource, limit in body.items()}


def _check_used(given: Mapping[str, int], used: Mapping[str, int]) -> None:
    for resource, limit in given.items():
        if 0 <= limit < used.get(resource, 0):
            raise BadRequest(
                f"Quota limit {limit} for {resource} must be greater than or equal to already used and reserved "
                f"{used[resource]}."
            )


def _check_project_limits(given: Mapping[str, int], of_project: Mapping[str, int]) -> None:
    """A user's share is no larger than the project's."""
    for resource, limit in given.items():
        most = of_project[resource]
        if most >= 0 and not 0 <= limit <= most:
            raise BadRequest(f"Quota limit {limit} for {resource} must be less than or equal to {most}.")


async def _check_project(ctx: Context, project_id: str) -> None:
    """Quotas of a misspelt project would be kept and never hold."""
    if project_id == ctx.token.project_id:
        return
    if not await ctx.services.identity.has_project(project_id):
        raise BadRequest(f"Project ID {project_id[:80]} is not a valid project.")


def _check_class_name(name: str) -> None:
    if not 1 <= len(name) <= 255:
        raise BadRequest("The name of a quota class has 1 to 255 characters.")
