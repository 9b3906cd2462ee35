"""Routes of volume type access: the projects that may use a private type."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, NotFound
from kilonova.volume.api import api
from kilonova.volume.types import model, schemas
from kilonova.volume.types.lookup import get_locked, get_visible
from kilonova.volume.types.model import VolumeType

ACTION = "/types/{type_id}/action"
RULE = "volume_extension:volume_type_access:"


@api.route("GET", "/types/{type_id}/os-volume-type-access", policy=RULE + "get_all_for_type", query={})
async def index(ctx: Context, type_id: str) -> Response:
    """List the projects that may use a private volume type."""
    volume_type = await get_visible(ctx, type_id)
    if volume_type.is_public:
        raise NotFound("Access list not available for public volume types.")
    projects = await model.ACCESS.projects(ctx.db, volume_type.id)
    return Response(
        {"volume_type_access": [{"volume_type_id": type_id, "project_id": project} for project in projects]}
    )


@api.action("addProjectAccess", ACTION, body=schemas.PROJECT, policy=RULE + "addProjectAccess", status=202)
async def add(ctx: Context, type_id: str) -> None:
    """Give a project access to a private volume type."""
    project = ctx.body["addProjectAccess"]["project"]
    async with ctx.db.transaction() as tx:
        volume_type = await get_locked(tx, type_id)
        _check_private(volume_type)
        if not await model.ACCESS.grant(tx, volume_type.id, project):
            raise Conflict(f"Volume type access for {type_id} / {project} combination already exists.")


@api.action("removeProjectAccess", ACTION, body=schemas.PROJECT, policy=RULE + "removeProjectAccess", status=202)
async def remove(ctx: Context, type_id: str) -> None:
    """Remove the access of a project to a private volume type. Its volumes of the type stay."""
    project = ctx.body["removeProjectAccess"]["project"]
    async with ctx.db.transaction() as tx:
        volume_type = await get_locked(tx, type_id)
        _check_private(volume_type)
        if not await model.ACCESS.revoke(tx, volume_type.id, project):
            raise NotFound(f"Volume type access not found for {type_id} / {project} combination.")


def _check_private(volume_type: VolumeType) -> None:
    if volume_type.is_public:
        raise BadRequest("Invalid volume type: Type access modification is not applicable to public volume type.")
