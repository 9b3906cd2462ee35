"""Routes of the types that volumes of single projects have by default."""

from __future__ import annotations

from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.volume.api import api
from kilonova.volume.types import model, schemas
from kilonova.volume.types.lookup import kept, missing

PATH = "/default-types/{project_id}"


@api.route(
    "GET",
    "/default-types",
    policy="volume_extension:default_get_all",
    query={},
    shows=("default_types", "default type", True),
)
async def index(ctx: Context) -> Answer:
    """List the projects that have a default type of their own."""
    rows = await model.own_defaults(ctx.db)
    return Answer({"default_types": [ctx.render("default type", row) for row in rows]})


@api.route("GET", PATH, policy="volume_extension:default_get", query={}, shows=("default_type", "default type", False))
async def show(ctx: Context, project_id: str) -> Answer:
    """Show the default type of a project that has one of its own."""
    row = await model.own_default(ctx.db, project_id)
    if row is None:
        raise NotFound(f"Default type for project {project_id} not found.")
    return Answer({"default_type": ctx.render("default type", row)})


@api.route(
    "PUT",
    PATH,
    policy="volume_extension:default_set_or_update",
    body=schemas.DEFAULT_TYPE,
    query={},
    shows=("default_type", "default type", False),
)
async def put(ctx: Context, project_id: str) -> Answer:
    """Give a project a default type of its own."""
    if project_id != ctx.token.project_id and not await ctx.services.identity.has_project(project_id):
        raise BadRequest(f"Project ID {project_id[:80]} is not a valid project.")
    reference = ctx.body["default_type"]["volume_type"]
    with kept(reference):
        async with ctx.db.transaction() as tx:
            row = await model.find(tx, reference, ctx.token)
            if row is None:
                raise missing(reference)
            await model.set_default(tx, project_id, row)
    return Answer({"default_type": ctx.render("default type", {"project_id": project_id, "type_id": row["id"]})})


@api.route("DELETE", PATH, policy="volume_extension:default_unset", query={}, status=204)
async def delete(ctx: Context, project_id: str) -> None:
    """Have the project's volumes be of the service's default type again."""
    async with ctx.db.transaction() as tx:
        await model.unset_default(tx, project_id)
