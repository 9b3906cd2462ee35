"""Routes and views of quota sets and quota classes."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kilonova.compute.api import api
from kilonova.compute.projects import check_project
from kilonova.compute.quotas import model, schemas
from kilonova.compute.quotas.schemas import CURRENT_RESOURCES
from kilonova.compute.quotas.source import find_source
from kilonova.http import Context, Response, View, col
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import is_true

log = logging.getLogger(__name__)

INTEGER = {"type": "integer"}
_DETAIL_FIELDS = {
    "type": "object",
    "properties": {"limit": INTEGER, "in_use": INTEGER, "reserved": INTEGER},
    "required": ["limit", "in_use", "reserved"],
}
ID = {"id": col("id", {"type": "string"})}

api.view(View("new quota set", {resource: col(resource, INTEGER) for resource in CURRENT_RESOURCES}))
api.view(View("quota set", {**ID, **{resource: col(resource, INTEGER) for resource in CURRENT_RESOURCES}}))
api.view(View("quota detail", {**ID, **{resource: col(resource, _DETAIL_FIELDS) for resource in CURRENT_RESOURCES}}))
api.view(View("new quota class", {resource: col(resource, INTEGER) for resource in CURRENT_RESOURCES}))
api.view(View("quota class", {**ID, **{resource: col(resource, INTEGER) for resource in CURRENT_RESOURCES}}))


SET = "/os-quota-sets/{project_id}"
CLASS = "/os-quota-class-sets/{name}"
RULE, CLASS_RULE = "os_compute_api:os-quota-sets:", "os_compute_api:os-quota-class-sets:"
SHOW, DETAIL = RULE + "show", RULE + "detail"


@api.route("GET", SET, checks=[SHOW], query=schemas.OF_USER, shows=("quota_set", "quota set", False))
async def show(ctx: Context, project_id: str) -> Response:
    """Show the quota of a project, or of a user in it."""
    ctx.authorize(SHOW, {"project_id": project_id})
    await check_project(ctx, project_id)
    source = await find_source(ctx.services, project_id)
    limits = await model.limits(ctx.db, project_id, source, _user(ctx))
    return Response({"quota_set": ctx.render("quota set", {"id": project_id, **limits})})


@api.route("GET", SET + "/detail", checks=[DETAIL], query=schemas.OF_USER, shows=("quota_set", "quota detail", False))
async def detail(ctx: Context, project_id: str) -> Response:
    """Show the quota and the usage of a project, or of a user in it."""
    ctx.authorize(DETAIL, {"project_id": project_id})
    await check_project(ctx, project_id)
    user_id, source = _user(ctx), await find_source(ctx.services, project_id)
    limits = await model.limits(ctx.db, project_id, source, user_id)
    used = await model.usage(ctx.db, project_id, source, user_id)
    rows = {name: {"limit": limit, "in_use": used.get(name, 0), "reserved": 0} for name, limit in limits.items()}
    return Response({"quota_set": ctx.render("quota detail", {"id": project_id, **rows})})


@api.route("GET", SET + "/defaults", policy=RULE + "defaults", query={}, shows=("quota_set", "quota set", False))
async def defaults(ctx: Context, project_id: str) -> Response:
    """Show the default quota."""
    await check_project(ctx, project_id)
    limits = await model.class_limits(ctx.db, model.DEFAULT_CLASS, await find_source(ctx.services, project_id))
    return Response({"quota_set": ctx.render("quota set", {"id": project_id, **limits})})


@api.route(
    "PUT",
    SET,
    policy=RULE + "update",
    body=schemas.UPDATE,
    query=schemas.OF_USER,
    shows=("quota_set", "new quota set", False),
)
async def update(ctx: Context, project_id: str) -> Response:
    """Change the quota of a project, or of a user in it."""
    await check_project(ctx, project_id)
    body = dict(ctx.body["quota_set"])
    force = is_true(body.pop("force", False))
    given, user_id, source = _as_integers(body), _user(ctx), await find_source(ctx.services, project_id)
    if source.unified is not None:
        _log_ignored(f"the quota of project {project_id}")
        return Response({"quota_set": ctx.render("new quota set", source.limits)})
    async with ctx.db.transaction() as tx:
        await tx.lock(f"quota:{project_id}")
        if not force:
            _check_used(given, await model.usage(tx, project_id, source, user_id))
        if user_id is None:
            await model.set_limits(tx, project_id, given)
        else:
            if not force:
                _check_project_limits(given, await model.limits(tx, project_id, source))
            await model.set_user_limits(tx, project_id, user_id, given)
        limits = await model.limits(tx, project_id, source, user_id)
    return Response({"quota_set": ctx.render("new quota set", limits)})


@api.route("DELETE", SET, policy=RULE + "delete", query=schemas.OF_USER, status=202)
async def delete(ctx: Context, project_id: str) -> None:
    """Reset the quota of a project to the defaults, or that of a user to the project's."""
    if ctx.services.config.quota.driver == "unified":
        _log_ignored(f"the quota of project {project_id}")
        return
    user_id = _user(ctx)
    async with ctx.db.transaction() as tx:
        await tx.lock(f"quota:{project_id}")
        if user_id is None:
            await model.reset(tx, project_id)
        else:
            await model.reset_user(tx, project_id, user_id)


@api.route("GET", CLASS, policy=CLASS_RULE + "show", query={}, shows=("quota_class_set", "quota class", False))
async def show_class(ctx: Context, name: str) -> Response:
    """Show a quota class; `default` applies to projects without limits of their own."""
    limits = await model.class_limits(ctx.db, name, await find_source(ctx.services, ctx.token.project_id))
    return Response({"quota_class_set": ctx.render("quota class", {"id": name, **limits})})


@api.route(
    "PUT",
    CLASS,
    policy=CLASS_RULE + "update",
    body=schemas.UPDATE_CLASS,
    query={},
    shows=("quota_class_set", "new quota class", False),
)
async def update_class(ctx: Context, name: str) -> Response:
    """Change a quota class."""
    _check_class_name(name)
    source = await find_source(ctx.services, ctx.token.project_id)
    async with ctx.db.transaction() as tx:
        if source.unified is None:
            await model.set_class_limits(tx, name, _as_integers(ctx.body["quota_class_set"]))
        else:
            _log_ignored(f"the quota class {name}")
        limits = await model.class_limits(tx, name, source)
    return Response({"quota_class_set": ctx.render("new quota class", limits)})


def _log_ignored(what: str) -> None:
    """Changes succeed without an effect, so that tools that also set other quotas work with unified limits."""
    log.warning("a change of %s was ignored: limits are unified, change them in Keystone", what)


def _user(ctx: Context) -> str | None:
    return ctx.query_one("user_id") or None


def _as_integers(body: Mapping[str, int | str]) -> dict[str, int]:
    return {resource: int(limit) for resource, limit in body.items()}


def _check_used(given: Mapping[str, int], used: Mapping[str, int]) -> None:
    for resource, limit in given.items():
        if 0 <= limit < used.get(resource, 0):
            raise BadRequest(
                f"Quota limit {limit} for {resource} must be greater than or equal to already used and reserved "
                f"{used[resource]}."
            )


def _check_project_limits(given: Mapping[str, int], of_project: Mapping[str, int]) -> None:
    """A user's limit must not exceed the project's."""
    for resource, limit in given.items():
        maximum = of_project[resource]
        if maximum >= 0 and not 0 <= limit <= maximum:
            raise BadRequest(f"Quota limit {limit} for {resource} must be less than or equal to {maximum}.")


def _check_class_name(name: str) -> None:
    if not 1 <= len(name) <= 255:
        raise BadRequest("The name of a quota class must have 1 to 255 characters.")
