"""Backups: images of a server of which only the newest are kept."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.block_devices.model import is_volume_backed
from kilonova.compute.operations import images
from kilonova.compute.operations.create_backup import CreateBackup
from kilonova.compute.servers import acting, create
from kilonova.compute.servers.imaging import SAYS_ID, UNLIMITED, show_early
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest
from kilonova.http.pieces import METADATA, NAME, STRING, Schema, closed

RULE = "os_compute_api:os-create-backup"
# The images by which a backup is found again when it is old.
_OWN = ("image_type", "backup_type", "instance_uuid")

CREATE_BACKUP: Schema = closed(
    {
        "name": NAME,
        "backup_type": STRING,
        "rotation": {"type": ["integer", "string"], "pattern": "^[0-9]{1,9}$", "minimum": 0},
        "metadata": METADATA,
    },
    ["name", "backup_type", "rotation"],
)


@api.action("createBackup", body=CREATE_BACKUP, checks=[RULE], status=202)
async def create_backup(ctx: Context, server_id: str) -> Answer:
    """Make an image of a server, and delete the oldest that were made so."""
    asked = ctx.body["createBackup"]
    given, rotation = asked.get("metadata", {}), int(asked["rotation"])
    if not ctx.behaves(UNLIMITED):
        await create.check_metadata(ctx, given)
    kept = {key: value for key, value in given.items() if key not in _OWN}
    marks = {"image_type": "backup", "backup_type": asked["backup_type"]}
    params = {
        "name": asked["name"],
        "metadata": {**kept, **marks},
        "type": asked["backup_type"],
        "rotation": rotation,
    }
    async with ctx.db.transaction() as tx:
        row = await acting.ready(ctx, tx, server_id, rule=RULE, transition="createBackup")
        if is_volume_backed(row):
            raise BadRequest("Backup is not supported for volume-backed instances.")
        operation_id = await acting.start(ctx, tx, row, CreateBackup, params)
    await show_early(ctx, operation_id, row, params)
    image_id = images.snapshot_id(operation_id)
    if rotation == 0:
        return Answer()
    if ctx.behaves(SAYS_ID):
        return Answer({"image_id": image_id})
    return Answer(headers={"Location": ctx.bookmark(f"/images/{image_id}")})
