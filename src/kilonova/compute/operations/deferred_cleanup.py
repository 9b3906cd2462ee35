"""Deferred cleanup: operations that do later what a host or the image service could not do when it was unreachable.

`steps/cleanup.py` begins them. They have no deadline: each waits until its host responds again or is removed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import UNSET, convert

from kilonova import clock
from kilonova.compute import operation_kinds as kinds
from kilonova.compute.block_devices import model as devices
from kilonova.compute.host_calls import Policy, responds, send
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import cleanup, images, shares, volumes
from kilonova.compute.operations.steps.cleanup import (
    NO_DEADLINE,
    CleanUpParams,
    DeferredParams,
    ParkGuestParams,
    RestoreDiskParams,
    RestoreGuestParams,
    RestoreInterfaceParams,
    RestoreSharesParams,
)
from kilonova.compute.operations.steps.images import DeleteImageParams
from kilonova.compute.operations.steps.server import nic_of
from kilonova.compute.servers import states
from kilonova.compute.servers.server import Server
from kilonova.hosts.messages import Command
from kilonova.hosts.messages.verbs import AttachNic, Change, DetachDisk, DetachNic, GuestVerb
from kilonova.hosts.transport import GuestNotRunning, HostRefused, HostUnreachable, NothingThere, StaleEpoch
from kilonova.operations import Entry, Operation, Step, TransientError
from kilonova.operations.definition import P_co

Op = TypeVar("Op", bound=Operation)
# A stale epoch means that the origin operation has called the host since.
_POLICY = Policy(accepts=(NothingThere, GuestNotRunning, StaleEpoch))


def _single_step(name: str, action: Callable[[Op], Awaitable[None]]) -> tuple[Entry[Op], ...]:
    return (Step(name, action, undo=None, why="it finishes an undo", deadline=NO_DEADLINE),)


class _Deferred(Operation[P_co]):
    """An operation of no server, which occupies no worker while it waits."""

    action = ""
    background = True


class CleanUpGuest(_Deferred[CleanUpParams]):
    """Destroy a guest that may be on a host that its server has left."""

    kind = kinds.CLEAN_UP_GUEST
    steps = staticmethod(lambda: _single_step("destroy guest", _clean_up))


class CleanUpSlot(_Deferred[CleanUpParams]):
    """Discard a parked guest in a slot. It does not run, so its host counts as up."""

    kind = kinds.CLEAN_UP_SLOT
    steps = staticmethod(lambda: _single_step("discard guest", _clean_up))


class RestoreGuest(_Deferred[RestoreGuestParams]):
    """Restore a guest to the state of its server: out of the slot, running or stopped, or removed."""

    kind = kinds.RESTORE_GUEST
    steps = staticmethod(lambda: _single_step("restore guest", _restore_guest))


class ParkGuest(_Deferred[ParkGuestParams]):
    """Park a guest in its slot again, after a failed revert."""

    kind = kinds.PARK_GUEST
    steps = staticmethod(lambda: _single_step("park guest", _park_guest))


class RestoreDisk(_Deferred[RestoreDiskParams]):
    """Attach or detach a volume of a guest, as its server's devices say. A detached volume is released.

    Until then the volume is not released, because the guest may still write to it.
    """

    kind = kinds.RESTORE_DISK
    steps = staticmethod(lambda: _single_step("restore disk", _restore_disk))


class RestoreInterface(_Deferred[RestoreInterfaceParams]):
    """Attach or detach an interface of a guest, as its server's row says."""

    kind = kinds.RESTORE_INTERFACE
    steps = staticmethod(lambda: _single_step("restore interface", _restore_interface))


class RestoreShares(_Deferred[RestoreSharesParams]):
    """Give a guest the shares that its server has."""

    kind = kinds.RESTORE_SHARES
    steps = staticmethod(lambda: _single_step("restore shares", _restore_shares))


class DeleteImage(_Deferred[DeleteImageParams]):
    """Delete an image that no server needs. Waits for the image service if that is down."""

    kind = kinds.DELETE_IMAGE
    steps = staticmethod(lambda: _single_step("delete image", _delete_image))


async def _clean_up(op: Operation[CleanUpParams]) -> None:
    host, slot = op.params.host, op.params.slot
    server = await _server(op)
    if slot is None and server is not None and server.host == host and not server.deleted:
        raise TransientError(f"{host}: the server is there")
    await call_for_origin(op, cleanup.clean_up_verb(op.params.guest_id, slot))
    async with op.db.transaction() as tx:
        await tx.execute(
            "UPDATE moves SET outcome = 'cleaned', updated_at = $3"
            " WHERE operation_id = $1 AND type = 'evacuation' AND source_host = $2 AND outcome IS NULL",
            op.params.operation,
            host,
            clock.now(),
        )


async def _restore_guest(op: Operation[RestoreGuestParams]) -> None:
    """Restore the guest, or discard its slot if the server has left the host."""
    params = op.params
    slot, aside = params.slot, None if params.aside is UNSET else params.aside
    server = await wait_until_idle(op)
    if server is None or server.host != params.host or await _moved_since(op):
        if slot is not None and not await _is_kept(op, server, slot):
            await call_for_origin(op, cleanup.clean_up_verb(params.guest_id, slot))
        return
    if slot is None and (server.power_state == states.RUNNING) != params.running:
        return  # the server was started or stopped since
    disks = await volumes.disks_of(op.db, server.id) if slot is not None else []
    names = [] if params.verbs is UNSET else params.verbs
    stored = [_stored_verb(name, server.id) for name in names]
    for verb in stored or cleanup.restore_verbs(server.id, slot, aside, params.running, disks):
        await call_for_origin(op, verb)


def _stored_verb(name: str, guest_id: str) -> GuestVerb[object]:
    verb: GuestVerb[object] = convert({"type": name, "guest_id": guest_id}, Change)
    return verb


async def _park_guest(op: Operation[ParkGuestParams]) -> None:
    guest_id, slot = op.params.guest_id, op.params.slot
    server = await wait_until_idle(op)
    if server is not None and server.host == op.params.host:
        return
    for verb in cleanup.park_verbs(guest_id, slot):
        await call_for_origin(op, verb)
    if not await _is_kept(op, server, slot):
        await call_for_origin(op, cleanup.clean_up_verb(guest_id, slot))


async def _is_kept(op: Operation[DeferredParams], server: Server | None, slot: str) -> bool:
    """Whether a revert may still need the guest in the slot."""
    move = await moves.find_unconfirmed(op.db, op.params.guest_id)
    return server is not None and move is not None and move.operation_id == slot


async def _restore_disk(op: Operation[RestoreDiskParams]) -> None:
    guest_id, volume_id, other = op.params.guest_id, op.params.volume_id, op.params.other
    server = await wait_until_idle(op)
    found = await devices.volumes_of(op.db, guest_id) if server is not None else []
    had = {device.volume: device for device in found}
    if server is not None and server.host == op.params.host and volume_id in had:
        await call_for_origin(op, cleanup.attach_verb(guest_id, had[volume_id], other))
    for each in (volume_id, other):
        if each is not None and each not in had:
            await call_for_origin(op, DetachDisk(guest_id=guest_id, volume_id=each))
            await _release_volume(op, guest_id, each)


async def _release_volume(op: Operation, guest_id: str, volume_id: str) -> None:
    auth = await op.services.identity.auth()
    async with volumes.volume_errors():
        for attachment in await op.services.volume.attachments(auth, volume_id=volume_id, instance_id=guest_id):
            await op.services.volume.delete_attachment(attachment.id, auth)


async def _restore_interface(op: Operation[RestoreInterfaceParams]) -> None:
    guest_id, port_id = op.params.guest_id, op.params.port_id
    server = await wait_until_idle(op)
    if server is not None and server.host != op.params.host:
        return
    interface = server.find_interface(port_id) if server is not None else None
    if interface is not None:
        await call_for_origin(op, AttachNic(guest_id=guest_id, nic=nic_of(interface)))
    else:
        await call_for_origin(op, DetachNic(guest_id=guest_id, port_id=port_id))


async def _restore_shares(op: Operation[RestoreSharesParams]) -> None:
    server = await wait_until_idle(op)
    if server is not None and server.host == op.params.host:
        await call_for_origin(op, await shares.set_shares(op, server.id))


async def _delete_image(op: Operation[DeleteImageParams]) -> None:
    await images.delete(op, op.params.image_id)


async def wait_until_idle(op: Operation[DeferredParams]) -> Server | None:
    """The server, or None if it is deleted. Waits for its unfinished operations, which may use this host."""
    busy = "SELECT 1 FROM operations WHERE server_id = $1 AND finished_at IS NULL LIMIT 1"
    if await op.db.fetch_value(busy, op.params.guest_id):
        raise TransientError(f"{op.params.host}: the server is busy")
    server = await _server(op)
    return None if server is None or server.deleted else server


async def _moved_since(op: Operation[DeferredParams]) -> bool:
    """Whether the origin operation succeeded after all, or a later one moved or rebuilt the server."""
    return bool(await op.db.fetch_value(_MOVED, op.params.operation, op.params.guest_id))


async def call_for_origin(op: Operation[DeferredParams], verb: GuestVerb[object]) -> None:
    """Call the host with the fence of the operation that deferred this."""
    origin = op.params
    if await op.db.fetch_one("SELECT 1 AS one FROM hypervisors WHERE host = $1", origin.host) is None:
        return  # an operator has removed the host
    if not await responds(op, origin.host):
        raise HostUnreachable(origin.host, "no answer")
    command = Command(
        host=origin.host,
        operation=origin.operation,
        step=op.kind,
        round=origin.round,
        epoch=origin.epoch,
        verb=verb,
    )
    try:
        await send(op, command, _POLICY)
    except HostRefused as refusal:
        raise TransientError(str(refusal)) from refusal


async def _server(op: Operation[DeferredParams]) -> Server | None:
    row = await op.db.fetch_one("SELECT * FROM servers WHERE id = $1", op.params.guest_id)
    return Server.decode_optional(row)


_MOVED = f"""
SELECT 1 FROM operations o LEFT JOIN moves m ON m.operation_id = o.id
WHERE o.server_id = $2 AND o.state = 'done'
    AND (m.operation_id IS NOT NULL OR o.kind IN ('{kinds.REBUILD}', '{kinds.REIMAGE}'))
    AND o.seq >= (SELECT seq FROM operations WHERE id = $1) LIMIT 1
"""
