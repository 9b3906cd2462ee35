"""Checks and begins the deletion of a volume."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.store import Transaction
from kilonova.volume.operations.delete_volume import DeleteVolume, DeleteVolumeParams
from kilonova.volume.snapshots import model as snapshots
from kilonova.volume.volumes import model, states
from kilonova.volume.volumes.model import Volume

_SNAPSHOTS = "SELECT status FROM volume_snapshots WHERE volume_id = $1 FOR UPDATE"
_COPIES = "SELECT 1 FROM volumes WHERE source_volume_id = $1 AND status = $2"
_SNAPSHOT_COPIES = (
    "SELECT 1 FROM volumes v JOIN volume_snapshots s ON s.id = v.snapshot_id WHERE s.volume_id = $1 AND v.status = $2"
)


async def delete(ctx: Context, tx: Transaction, volume: Volume, *, cascade: bool = False, force: bool = False) -> None:
    """Begin to delete the locked volume. `force` ignores the status, but not attachments."""
    if not force:
        states.check(volume, "delete")
    volume_id = volume.id
    await model.check_detached(tx, volume_id)
    await _check_snapshots(tx, volume_id, cascade)
    for sql in (_COPIES, _SNAPSHOT_COPIES):
        if await tx.fetch_value(sql, volume_id, states.CREATING) is not None:
            raise BadRequest(f"Invalid volume: Volume {volume_id} is being copied.")
    await model.set_status(tx, volume_id, states.DELETING)
    if cascade:
        await snapshots.set_all_statuses(tx, volume_id, snapshots.DELETING)
    params = DeleteVolumeParams(volume_id, cascade)
    await model.begin_operation(ctx, tx, DeleteVolume, volume.project_id, params)


async def _check_snapshots(tx: Transaction, volume_id: str, cascade: bool) -> None:
    found = [row["status"] for row in await tx.fetch(_SNAPSHOTS, volume_id)]
    if found and not cascade:
        raise BadRequest(f"Invalid volume: Volume {volume_id} still has {len(found)} dependent snapshots.")
    if any(status not in snapshots.DELETABLE for status in found):
        raise BadRequest(f"Invalid volume: snapshots of volume {volume_id} are being created or deleted.")
