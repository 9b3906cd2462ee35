"""Disks that an undo cannot give or take because the host is silent: done on its return, by durable operations.

Until then a volume that the guest may still have is not given back to the volume service, so that nobody else gets it.
"""

from __future__ import annotations

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations import leftovers, volumes
from kilonova.compute.operations.common import fence
from kilonova.compute.operations.leftovers import FOR_EVER
from kilonova.hosts.messages import AttachDisk, Change, DetachDisk, SwapDisk
from kilonova.operations import Operation, Step
from kilonova.store import Row


class RestoreDisk(Operation):
    """Have a guest with or without a volume, as its server's record says; without it, the volume is given back.

    `params`: `guest_id`, `host`, `volume_id`; `other`, a volume that the guest may have instead (or null); and of the
    operation that left it behind `operation`, `round` and a higher `epoch`.
    """

    kind = "restore disk"
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        why = "it is the undoing of something else"
        return (Step("restore disk", _restore, undo=None, why=why, deadline=FOR_EVER),)


async def take(op: Operation, host: str, step: str, volume_id: str) -> None:
    """For undo steps: have the volume out of the operation's guest, now or on the host's return."""
    verb = DetachDisk(guest_id=str(op.server_id), volume_id=volume_id)
    if not await leftovers.now_or_later(op, host, step, verb):
        await _leave(op, host, volume_id, None)


async def give(op: Operation, host: str, step: str, device: Row, *, instead_of: str | None = None) -> None:
    """For undo steps: have the operation's guest with the volume, perhaps for another one, now or on the host's return.

    What the guest wrote to the other one goes along.
    """
    verb = _giving(str(op.server_id), device, instead_of)
    if not await leftovers.now_or_later(op, host, step, verb):
        await _leave(op, host, device["volume_id"], instead_of)


async def is_left(op: Operation, host: str, volume_id: str) -> bool:
    """Whether the operation has left this behind, which then gives back what the guest has not."""
    possible = [leftovers.identity_of(op, RestoreDisk, host, volume_id, epoch) for epoch in range(1, op.epoch + 1)]
    return bool(await op.db.fetch_value("SELECT 1 FROM operations WHERE id = ANY($1) LIMIT 1", possible))


async def _leave(op: Operation, host: str, volume_id: str, other: str | None) -> None:
    async with op.db.transaction() as tx:
        await leftovers.leave(op, tx, RestoreDisk, host, volume_id, {"volume_id": volume_id, "other": other})
        await fence(op, tx)


def _giving(guest_id: str, device: Row, instead_of: str | None) -> Change:
    disk = devices.disk_of(device)
    if instead_of is None:
        return AttachDisk(guest_id=guest_id, disk=disk)
    return SwapDisk(guest_id=guest_id, volume_id=instead_of, disk=disk)


async def _restore(op: Operation) -> None:
    guest_id, host, other = op.params["guest_id"], op.params["host"], op.params["other"]
    about = [volume_id for volume_id in (op.params["volume_id"], other) if volume_id is not None]
    server = await leftovers.idle(op)
    found = await devices.volumes_of(op.db, guest_id) if server is not None else []
    had = {device["volume_id"]: device for device in found}
    if server is not None and server["host"] == host and about[0] in had:
        await leftovers.fenced(op, _giving(guest_id, had[about[0]], other))
    for volume_id in about:
        if volume_id not in had:
            await leftovers.fenced(op, DetachDisk(guest_id=guest_id, volume_id=volume_id))
            await _give_back(op, guest_id, volume_id)


async def _give_back(op: Operation, guest_id: str, volume_id: str) -> None:
    auth = await op.services.identity.auth()
    async with volumes.explained():
        for attachment in await op.services.volume.attachments(auth, volume_id=volume_id, instance_id=guest_id):
            await op.services.volume.delete_attachment(attachment["id"], auth)
