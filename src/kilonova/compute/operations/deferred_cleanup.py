"""Deferred cleanup: operations that do later what a host or the image service could not do when it was unreachable.

`steps/cleanup.py` begins them. They have no deadline: each waits until its host responds again or is removed.
"""

from __future__ import annotations

from kilonova import clock
from kilonova.compute.block_devices import model as devices
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import cleanup, hosts, images, interfaces, volumes
from kilonova.compute.operations.steps.cleanup import NO_DEADLINE
from kilonova.compute.operations.steps.server import nic_of
from kilonova.compute.servers import states
from kilonova.hosts.messages import Command
from kilonova.hosts.messages.verbs import VERBS, AttachNic, Change, DetachDisk, DetachNic
from kilonova.hosts.transport import HostFailed, HostUnreachable, StaleEpoch
from kilonova.operations import Operation, Step, TransientError
from kilonova.operations.definition import Action
from kilonova.store import Row


def _single_step(name: str, action: Action) -> tuple[Step, ...]:
    return (Step(name, action, undo=None, why="it finishes an undo", deadline=NO_DEADLINE),)


class _Deferred(Operation):
    """An operation of no server, which occupies no worker while it waits."""

    action = ""
    background = True


class CleanUpGuest(_Deferred):
    """Destroy a guest that may be on a host that its server has left.

    `params`: `guest_id`, `host`, `slot` (null); and `operation`, `round` and a higher `epoch` of the command that may
    have built the guest, so that the host refuses that command if it arrives late.
    """

    kind = cleanup.CLEAN_UP_GUEST
    steps = staticmethod(lambda: _single_step("destroy guest", _clean_up))


class CleanUpSlot(_Deferred):
    """Discard a parked guest in a slot. It does not run, so its host counts as up.

    `params`: those of CleanUpGuest.
    """

    kind = cleanup.CLEAN_UP_SLOT
    steps = staticmethod(lambda: _single_step("discard guest", _clean_up))


class RestoreGuest(_Deferred):
    """Restore a guest to the state of its server: out of the slot, running or stopped, or removed.

    `params`: those of CleanUpGuest, `running`, and `verbs` if the guest needs more than power on or off.
    """

    kind = cleanup.RESTORE_GUEST
    steps = staticmethod(lambda: _single_step("restore guest", _restore_guest))


class ParkGuest(_Deferred):
    """Park a guest in its slot again, after a failed revert.

    `params`: those of CleanUpGuest.
    """

    kind = cleanup.PARK_GUEST
    steps = staticmethod(lambda: _single_step("park guest", _park_guest))


class RestoreDisk(_Deferred):
    """Attach or detach a volume of a guest, as its server's devices say. A detached volume is released.

    Until then the volume is not released, because the guest may still write to it. `params`: `guest_id`, `host`,
    `volume_id`, `other` (a volume that the guest may have instead, or null); and `operation`, `round` and a higher
    `epoch` of the operation that deferred this.
    """

    kind = cleanup.RESTORE_DISK
    steps = staticmethod(lambda: _single_step("restore disk", _restore_disk))


class RestoreInterface(_Deferred):
    """Attach or detach an interface of a guest, as its server's row says.

    `params`: `guest_id`, `host`, `port_id`; and `operation`, `round` and a higher `epoch` of the operation that
    deferred this.
    """

    kind = cleanup.RESTORE_INTERFACE
    steps = staticmethod(lambda: _single_step("restore interface", _restore_interface))


class DeleteImage(_Deferred):
    """Delete an image that no server needs. Waits for the image service if that is down.

    `params`: `image_id`.
    """

    kind = images.DELETE_IMAGE
    steps = staticmethod(lambda: _single_step("delete image", _delete_image))


async def _clean_up(op: Operation) -> None:
    host, guest_id, slot = op.params["host"], op.params["guest_id"], op.params.get("slot")
    server = await _server(op)
    if slot is None and server is not None and server["host"] == host and not server["deleted"]:
        raise TransientError(f"{host}: the server is there")
    await call_for_origin(op, cleanup.clean_up_verb(guest_id, slot))
    async with op.db.transaction() as tx:
        await tx.execute(
            "UPDATE moves SET outcome = 'cleaned', updated_at = $3"
            " WHERE operation_id = $1 AND type = 'evacuation' AND source_host = $2 AND outcome IS NULL",
            op.params["operation"],
            host,
            clock.now(),
        )


async def _restore_guest(op: Operation) -> None:
    """Restore the guest, or discard its slot if the server has left the host."""
    host, slot, running = op.params["host"], op.params.get("slot"), op.params["running"]
    server = await wait_until_idle(op)
    if server is None or server["host"] != host or await _moved_since(op):
        if slot is not None and not await _is_kept(op, server):
            await call_for_origin(op, cleanup.clean_up_verb(op.params["guest_id"], slot))
        return
    if slot is None and (server["power_state"] == states.RUNNING) != running:
        return  # the server was started or stopped since
    disks = await volumes.disks_of(op.db, server["id"]) if slot is not None else []
    for verb in _stored_verbs(op) or cleanup.restore_verbs(server["id"], slot, op.params.get("aside"), running, disks):
        await call_for_origin(op, verb)


def _stored_verbs(op: Operation) -> list[Change]:
    guest_id = op.params["guest_id"]
    return [cleanup.verb_for(VERBS[name], guest_id) for name in op.params.get("verbs", ())]


async def _park_guest(op: Operation) -> None:
    guest_id, slot = op.params["guest_id"], op.params["slot"]
    server = await wait_until_idle(op)
    if server is not None and server["host"] == op.params["host"]:
        return
    for verb in cleanup.park_verbs(guest_id, slot):
        await call_for_origin(op, verb)
    if not await _is_kept(op, server):
        await call_for_origin(op, cleanup.clean_up_verb(guest_id, slot))


async def _is_kept(op: Operation, server: Row | None) -> bool:
    """Whether a revert may still need the guest in the slot."""
    move = await moves.find_unconfirmed(op.db, op.params["guest_id"])
    return server is not None and move is not None and move["operation_id"] == op.params["slot"]


async def _restore_disk(op: Operation) -> None:
    guest_id, host, other = op.params["guest_id"], op.params["host"], op.params["other"]
    about = [volume_id for volume_id in (op.params["volume_id"], other) if volume_id is not None]
    server = await wait_until_idle(op)
    found = await devices.volumes_of(op.db, guest_id) if server is not None else []
    had = {device["volume_id"]: device for device in found}
    if server is not None and server["host"] == host and about[0] in had:
        await call_for_origin(op, cleanup.attach_verb(guest_id, had[about[0]], other))
    for volume_id in about:
        if volume_id not in had:
            await call_for_origin(op, DetachDisk(guest_id=guest_id, volume_id=volume_id))
            await _release_volume(op, guest_id, volume_id)


async def _release_volume(op: Operation, guest_id: str, volume_id: str) -> None:
    auth = await op.services.identity.auth()
    async with volumes.volume_errors():
        for attachment in await op.services.volume.attachments(auth, volume_id=volume_id, instance_id=guest_id):
            await op.services.volume.delete_attachment(attachment["id"], auth)


async def _restore_interface(op: Operation) -> None:
    guest_id, host, port_id = op.params["guest_id"], op.params["host"], op.params["port_id"]
    server = await wait_until_idle(op)
    row = server and await op.db.fetch_one("SELECT host, nics FROM servers WHERE id = $1", guest_id)
    nic = interfaces.find(row, port_id) if row and row["host"] == host else None
    if nic is not None:
        await call_for_origin(op, AttachNic(guest_id=guest_id, nic=nic_of(nic)))
    elif row is None or row["host"] == host:
        await call_for_origin(op, DetachNic(guest_id=guest_id, port_id=port_id))


async def _delete_image(op: Operation) -> None:
    await images.delete(op, op.params["image_id"])


async def wait_until_idle(op: Operation) -> Row | None:
    """The server, or None if it is deleted. Waits for its unfinished operations, which may use this host."""
    busy = "SELECT 1 FROM operations WHERE server_id = $1 AND finished_at IS NULL LIMIT 1"
    if await op.db.fetch_value(busy, op.params["guest_id"]):
        raise TransientError(f"{op.params['host']}: the server is busy")
    server = await _server(op)
    return None if server is None or server["deleted"] else server


async def _moved_since(op: Operation) -> bool:
    """Whether the origin operation succeeded after all, or a later one moved or rebuilt the server."""
    return bool(await op.db.fetch_value(_MOVED, op.params["operation"], op.params["guest_id"]))


async def call_for_origin(op: Operation, verb: Change) -> None:
    """Call the host with the fence of the operation that deferred this."""
    host = op.params["host"]
    if await op.db.fetch_one("SELECT 1 AS one FROM hypervisors WHERE host = $1", host) is None:
        return  # an operator has removed the host
    if not await hosts.responds(op, host):
        raise HostUnreachable(host, "no answer")
    fence = {"operation": op.params["operation"], "round": op.params["round"], "epoch": op.params["epoch"]}
    try:
        await op.services.hosts.call(host, Command(host=host, step=op.kind, verb=verb, **fence))
    except StaleEpoch:
        return  # the origin operation has called the host since
    except HostFailed as error:
        if error.kind not in cleanup.MISSING + cleanup.NOT_RUNNING:
            raise TransientError(str(error)) from error


async def _server(op: Operation) -> Row | None:
    sql = "SELECT id, host, deleted, power_state FROM servers WHERE id = $1"
    return await op.db.fetch_one(sql, op.params["guest_id"])


_MOVED = """
SELECT 1 FROM operations o LEFT JOIN moves m ON m.operation_id = o.id
WHERE o.server_id = $2 AND (m.operation_id IS NOT NULL OR o.kind IN ('rebuild', 'reimage')) AND o.state = 'done'
    AND o.seq >= (SELECT seq FROM operations WHERE id = $1) LIMIT 1
"""
