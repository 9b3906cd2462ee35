"""Create a backup of a server, with rotation."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.operations.create_backup import CreateBackup, CreateBackupParams
from kilonova.compute.operations.steps import images
from kilonova.compute.servers import action_checks, create
from kilonova.compute.servers.actions.create_image import UNLIMITED, create_early, image_response
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import METADATA, NAME, STRING, Schema, closed_object

RULE = "os_compute_api:os-create-backup"
# Properties by which old backups are found; users cannot set them.
_OWN = ("image_type", "backup_type", "instance_uuid")

CREATE_BACKUP: Schema = closed_object(
    {
        "name": NAME,
        "backup_type": STRING,
        "rotation": {"type": ["integer", "string"], "pattern": "^[0-9]{1,9}$", "minimum": 0},
        "metadata": METADATA,
    },
    ["name", "backup_type", "rotation"],
)


@api.action("createBackup", body=CREATE_BACKUP, checks=[RULE], status=202)
async def create_backup(ctx: Context, server_id: str) -> Response:
    """Create a backup image of a server, and delete the oldest backups of its type."""
    requested = ctx.body["createBackup"]
    given, rotation = requested.get("metadata", {}), int(requested["rotation"])
    if not ctx.has_behaviour(UNLIMITED):
        await create.check_metadata(ctx, given)
    kept = {key: value for key, value in given.items() if key not in _OWN}
    marks = {"image_type": "backup", "backup_type": requested["backup_type"]}
    params = CreateBackupParams(
        name=requested["name"], metadata={**kept, **marks}, type=requested["backup_type"], rotation=rotation
    )
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_ready(
            ctx, tx, server_id, rule=RULE, transition="createBackup", even_locked=True
        )
        if server.is_volume_backed:
            raise BadRequest("Backup is not supported for volume-backed instances.")
        operation_id = await action_checks.begin_operation(ctx, tx, server, CreateBackup, params)
    await create_early(ctx, operation_id, server, params)
    image_id = images.snapshot_id(operation_id)
    if rotation == 0:
        return Response()
    return await image_response(ctx, image_id)
