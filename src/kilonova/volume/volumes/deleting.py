"""What may be deleted, and what goes with it."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.operations import begin
from kilonova.store import Row, Transaction
from kilonova.volume.operations.delete_volume import DeleteVolume
from kilonova.volume.snapshots import model as snapshots
from kilonova.volume.volumes import model, states

_SNAPSHOTS = "SELECT status FROM volume_snapshots WHERE volume_id = $1 FOR UPDATE"
_COPIED = "SELECT 1 FROM volumes WHERE source_volume_id = $1 AND status = $2"
_SNAPSHOTS_COPIED = (
    "SELECT 1 FROM volumes v JOIN volume_snapshots s ON s.id = v.snapshot_id WHERE s.volume_id = $1 AND v.status = $2"
)


async def delete(ctx: Context, tx: Transaction, volume: Row, *, cascade: bool = False, force: bool = False) -> None:
    """Begin to delete the volume, which is locked; `force` whatever its status, but never what a server has."""
    if not force:
        states.check(volume, "delete")
    volume_id = volume["id"]
    await model.check_detached(tx, volume_id)
    await _check_snapshots(tx, volume_id, cascade)
    for copying in (_COPIED, _SNAPSHOTS_COPIED):
        if await tx.fetch_value(copying, volume_id, states.CREATING) is not None:
            raise BadRequest(f"Invalid volume: Volume {volume_id} is being copied.")
    await model.set_status(tx, volume_id, states.DELETING)
    if cascade:
        await snapshots.set_status_of(tx, volume_id, snapshots.DELETING)
    await begin(
        tx,
        DeleteVolume,
        params={"volume_id": volume_id, "cascade": cascade},
        project_id=volume["project_id"],
        user_id=ctx.token.user_id,
        request_id=ctx.request_id,
    )


async def _check_snapshots(tx: Transaction, volume_id: str, cascade: bool) -> None:
    found = [row["status"] for row in await tx.fetch(_SNAPSHOTS, volume_id)]
    if found and not cascade:
        raise BadRequest(f"Invalid volume: Volume {volume_id} still has {len(found)} dependent snapshots.")
    if any(status not in snapshots.DELETABLE for status in found):
        raise BadRequest(f"Invalid volume: snapshots of volume {volume_id} are being made or deleted.")
