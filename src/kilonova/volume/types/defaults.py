"""Routes of default volume types of projects."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound
from kilonova.volume.api import api
from kilonova.volume.types import model, schemas
from kilonova.volume.types.lookup import not_found, not_found_on_conflict
from kilonova.volume.types.model import DefaultType

PATH = "/default-types/{project_id}"


@api.route(
    "GET",
    "/default-types",
    policy="volume_extension:default_get_all",
    query={},
    shows=("default_types", "default type", True),
)
async def index(ctx: Context) -> Response:
    """List the default volume types of projects."""
    found = await model.project_defaults(ctx.db)
    return Response({"default_types": [ctx.render("default type", default) for default in found]})


@api.route("GET", PATH, policy="volume_extension:default_get", query={}, shows=("default_type", "default type", False))
async def show(ctx: Context, project_id: str) -> Response:
    """Show the default volume type of a project."""
    default = await model.project_default(ctx.db, project_id)
    if default is None:
        raise NotFound(f"Default type for project {project_id} not found.")
    return Response({"default_type": ctx.render("default type", default)})


@api.route(
    "PUT",
    PATH,
    policy="volume_extension:default_set_or_update",
    body=schemas.DEFAULT_TYPE,
    query={},
    shows=("default_type", "default type", False),
)
async def put(ctx: Context, project_id: str) -> Response:
    """Set the default volume type of a project."""
    if project_id != ctx.token.project_id and not await ctx.services.identity.has_project(project_id):
        raise BadRequest(f"Project ID {project_id[:80]} is not a valid project.")
    reference = ctx.body["default_type"]["volume_type"]
    with not_found_on_conflict(reference):
        async with ctx.db.transaction() as tx:
            volume_type = await model.find(tx, reference, ctx.token)
            if volume_type is None:
                raise not_found(reference)
            default = DefaultType(project_id, volume_type.id)
            await model.set_default(tx, default)
    return Response({"default_type": ctx.render("default type", default)})


@api.route("DELETE", PATH, policy="volume_extension:default_unset", query={}, status=204)
async def delete(ctx: Context, project_id: str) -> None:
    """Unset the default volume type of a project."""
    async with ctx.db.transaction() as tx:
        await model.unset_default(tx, project_id)
