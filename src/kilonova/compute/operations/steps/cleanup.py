"""Cleanup on a host, for undo steps: done now, or deferred if the host does not respond or refuses too often.

Deferred cleanup is an operation of its own (`operations/deferred_cleanup.py`). A host with a guest to clean up does not
count as up until the guest is destroyed.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol, TypedDict, TypeVar

from msgspec import UNSET, Struct, UnsetType, field

from kilonova.compute.block_devices import model as devices
from kilonova.compute.block_devices.model import BlockDevice
from kilonova.compute.host_calls import CLEAN_UP, GivenUp, Policy, call, is_refused_too_often
from kilonova.compute.operation_kinds import (
    CLEAN_UP_GUEST,
    CLEAN_UP_SLOT,
    PARK_GUEST,
    RESTORE_DISK,
    RESTORE_GUEST,
    RESTORE_INTERFACE,
    RESTORE_SHARES,
)
from kilonova.compute.operations.steps import choose, volumes
from kilonova.compute.operations.steps.server import fence, nic_of
from kilonova.compute.servers import model
from kilonova.compute.servers.server import Interface
from kilonova.hosts.messages import Disk
from kilonova.hosts.messages.verbs import (
    AttachDisk,
    AttachNic,
    Destroy,
    DetachDisk,
    DetachNic,
    Discard,
    GuestVerb,
    Park,
    PowerOff,
    PowerOn,
    SetShares,
    SwapDisk,
    Unpark,
)
from kilonova.hosts.transport import GuestNotRunning, HostUnreachable, NothingThere
from kilonova.operations import Failed, Operation, begin, get_kind
from kilonova.store import Transaction

# Ids of deferred operations are derived from these words. Changing a word would begin stored operations again.
_SEEDS = {
    CLEAN_UP_GUEST: "clear guest",
    CLEAN_UP_SLOT: "clear slot",
    RESTORE_GUEST: "restore guest",
    PARK_GUEST: "park guest again",
    RESTORE_DISK: "restore disk",
    RESTORE_INTERFACE: "restore nic",
    RESTORE_SHARES: "restore shares",
}
NO_DEADLINE = 100 * 365 * 24 * 3600.0
# A guest that has stopped by itself stays stopped.
_REVERSE = replace(CLEAN_UP, accepts=(NothingThere, GuestNotRunning))


class LeftOn(Struct, frozen=True):
    """The result of a step that left its guest on an unreachable host."""

    host: str = field(name="left on")


class Origin(Protocol):
    """The operation whose guest a deferred operation cleans up or restores. It may have ended."""

    @property
    def id(self) -> str: ...

    @property
    def server_id(self) -> str | None: ...

    @property
    def project_id(self) -> str | None: ...

    @property
    def user_id(self) -> str | None: ...

    @property
    def request_id(self) -> str | None: ...

    @property
    def round(self) -> int: ...

    @property
    def epoch(self) -> int: ...


# Parameters of deferred operations


class DeferredParams(Struct, frozen=True, kw_only=True):
    """The guest and its host. `operation`, `round` and a higher `epoch` are those of the operation that deferred this.

    So the host refuses a command of that operation that arrives late.
    """

    guest_id: str
    host: str
    operation: str
    round: int
    epoch: int


class CleanUpParams(DeferredParams, frozen=True, kw_only=True):
    slot: str | None = None


class RestoreGuestParams(DeferredParams, frozen=True, kw_only=True):
    """`aside`: a slot for the guest that is there now. `verbs`: if the guest needs more than power on or off."""

    slot: str | None = None
    running: bool
    aside: str | UnsetType | None = UNSET
    verbs: list[str] | UnsetType = UNSET


class ParkGuestParams(DeferredParams, frozen=True, kw_only=True):
    slot: str


class RestoreDiskParams(DeferredParams, frozen=True, kw_only=True):
    """`other`: a volume that the guest may have instead."""

    volume_id: str
    other: str | None


class RestoreInterfaceParams(DeferredParams, frozen=True, kw_only=True):
    port_id: str


P = TypeVar("P", bound=DeferredParams)


class RestoreSharesParams(DeferredParams, frozen=True, kw_only=True):
    pass


class _OriginParams(TypedDict):
    guest_id: str
    host: str
    operation: str
    round: int
    epoch: int


def _origin(op: Origin, host: str) -> _OriginParams:
    return {
        "guest_id": str(op.server_id),
        "host": host,
        "operation": op.id,
        "round": op.round,
        "epoch": op.epoch + 1,
    }


# Guests


async def clean_up(
    op: Operation, host: str, step: str, *, slot: str | None = None, defer_if_unreachable: bool = True
) -> None:
    """Remove the operation's guest, or the contents of its slot, from the host: now or deferred.

    `defer_if_unreachable=False` is for a guest that another deferred operation replaces.
    """
    verb = clean_up_verb(str(op.server_id), slot)
    if not await call_or_defer(op, host, step, verb) and defer_if_unreachable:
        async with op.db.transaction() as tx:
            await defer_clean_up(op, tx, host, slot=slot)


async def restore(
    op: Operation, host: str, step: str, *, running: bool, slot: str | None = None, aside: str | None = None
) -> None:
    """Restore the operation's guest on its host: now or deferred.

    A server that is being deleted and a missing guest need no restore. A guest whose restore from the slot is deferred
    needs no other one, and the host must not receive a command of this operation before that.
    """
    if slot is None and (
        await model.is_being_deleted(op.db, str(op.server_id)) or await is_unrestored(op, host, slot=op.id)
    ):
        return
    disks = await volumes.disks(op) if slot is not None else []
    for verb in restore_verbs(str(op.server_id), slot, aside, running, disks):
        if not await call_or_defer(op, host, step, verb):
            params = RestoreGuestParams(**_origin(op, host), slot=slot, running=running, aside=aside)
            async with op.db.transaction() as tx:
                await _defer(op, tx, RESTORE_GUEST, slot, params)
            return


async def reverse(op: Operation, host: str, step: str, *verbs: type[GuestVerb[object]], running: bool) -> None:
    """Undo a change of the operation's guest with these verbs: now or deferred.

    `running`: whether the guest runs afterwards.
    """
    if await model.is_being_deleted(op.db, str(op.server_id)):
        return
    for verb in verbs:
        if not await call_or_defer(op, host, step, verb(guest_id=str(op.server_id)), _REVERSE):
            names = [verb.tag() for verb in verbs]
            params = RestoreGuestParams(**_origin(op, host), running=running, verbs=names)
            async with op.db.transaction() as tx:
                await _defer(op, tx, RESTORE_GUEST, None, params)
            return


async def defer_stop(op: Operation, tx: Transaction, host: str) -> None:
    """Power the guest off when the host responds again, unless the server was started in the meantime."""
    await _defer(op, tx, RESTORE_GUEST, None, RestoreGuestParams(**_origin(op, host), running=False))


async def park(op: Operation, host: str, step: str, *, slot: str) -> None:
    """Park the operation's guest in the slot again, on a host that its server has left: now or deferred."""
    for verb in park_verbs(str(op.server_id), slot):
        if not await call_or_defer(op, host, step, verb):
            async with op.db.transaction() as tx:
                await _defer(op, tx, PARK_GUEST, slot, ParkGuestParams(**_origin(op, host), slot=slot))
            return


async def defer_clean_up(op: Origin, tx: Transaction, host: str, *, slot: str | None = None) -> None:
    """Begin the deferred removal of the operation's guest, or of the contents of the slot. Idempotent."""
    await _defer(op, tx, _clean_up_kind(slot), slot, CleanUpParams(**_origin(op, host), slot=slot))


async def is_deferred(op: Operation, host: str, *, slot: str | None = None) -> bool:
    """Whether the operation has deferred this removal. The host would refuse its further commands."""
    possible = [_deferred_id(op, _clean_up_kind(slot), host, slot, epoch) for epoch in range(1, op.epoch + 1)]
    return bool(await op.db.fetch_value("SELECT 1 FROM operations WHERE id = ANY($1) LIMIT 1", possible))


async def is_unrestored(op: Operation, host: str, *, slot: str) -> bool:
    """Whether an earlier round has deferred taking the guest out of the slot, and that is unfinished."""
    possible = [_deferred_id(op, RESTORE_GUEST, host, slot, epoch) for epoch in range(1, op.epoch + 1)]
    sql = "SELECT 1 FROM operations WHERE id = ANY($1) AND finished_at IS NULL LIMIT 1"
    return bool(await op.db.fetch_value(sql, possible))


@asynccontextmanager
async def tolerate_refusals(op: Operation) -> AsyncIterator[None]:
    """Give up an undo that another service refuses too often. `kilonova doctor` reports what remains."""
    try:
        yield
    except Failed:
        if not await is_refused_too_often(op):
            raise


async def call_or_defer(
    op: Operation, host: str, step: str, verb: GuestVerb[object], policy: Policy = CLEAN_UP
) -> bool:
    """Call the host now. Returns False if it does not respond or refuses too often: the caller defers the call."""
    # An operation that left this host because it did not respond need not probe it again.
    left = host in choose.tried_hosts(op)
    try:
        await call(op, host, step, verb, replace(policy, probes=not left))
    except GivenUp:
        return False
    except HostUnreachable:
        if not left:
            raise
        return False
    return True


async def _defer(op: Origin, tx: Transaction, kind: str, part: str | None, params: P) -> None:
    """Begin a deferred operation once. `part` of the guest makes its id unique on the host."""
    identity = _deferred_id(op, kind, params.host, part, op.epoch)
    if await tx.fetch_value("SELECT 1 FROM operations WHERE id = $1", identity):
        return
    await begin(
        tx,
        get_kind(kind, type(params)),
        params=params,
        guest_id=params.guest_id,
        project_id=op.project_id,
        user_id=op.user_id,
        request_id=op.request_id,
        host=params.host,
        operation_id=identity,
    )


def _deferred_id(op: Origin, kind: str, host: str, part: str | None, epoch: int) -> str:
    return str(uuid.uuid5(uuid.UUID(op.id), f"{_SEEDS[kind]} {host} {part} {epoch}"))


def _clean_up_kind(slot: str | None) -> str:
    return CLEAN_UP_GUEST if slot is None else CLEAN_UP_SLOT


def clean_up_verb(guest_id: str, slot: str | None) -> Destroy | Discard:
    return Destroy(guest_id=guest_id) if slot is None else Discard(guest_id=guest_id, slot=slot)


def restore_verbs(
    guest_id: str, slot: str | None, aside: str | None, running: bool, disks: list[Disk]
) -> Sequence[GuestVerb[object]]:
    if slot is None:
        return [PowerOn(guest_id=guest_id) if running else PowerOff(guest_id=guest_id)]
    before = park_verbs(guest_id, aside) if aside is not None else []
    return [*before, Unpark(guest_id=guest_id, slot=slot, start=running, disks=disks)]


def park_verbs(guest_id: str, slot: str) -> Sequence[GuestVerb[object]]:
    return [PowerOff(guest_id=guest_id), Park(guest_id=guest_id, slot=slot)]


# Disks


async def detach_disk(op: Operation, host: str, step: str, volume_id: str) -> None:
    """Detach the volume from the operation's guest: now or deferred."""
    verb = DetachDisk(guest_id=str(op.server_id), volume_id=volume_id)
    if not await call_or_defer(op, host, step, verb):
        await _defer_disk(op, host, volume_id, None)


async def attach_disk(
    op: Operation, host: str, step: str, device: BlockDevice, *, instead_of: str | None = None
) -> None:
    """Attach the volume to the operation's guest, or swap it in for another one: now or deferred.

    A swap copies what the guest wrote to the other volume.
    """
    verb = attach_verb(str(op.server_id), device, instead_of)
    if not await call_or_defer(op, host, step, verb):
        await _defer_disk(op, host, device.volume, instead_of)


async def is_disk_deferred(op: Operation, host: str, volume_id: str) -> bool:
    """Whether the operation has deferred this change, which then also releases the volume."""
    possible = [_deferred_id(op, RESTORE_DISK, host, volume_id, epoch) for epoch in range(1, op.epoch + 1)]
    return bool(await op.db.fetch_value("SELECT 1 FROM operations WHERE id = ANY($1) LIMIT 1", possible))


async def _defer_disk(op: Operation, host: str, volume_id: str, other: str | None) -> None:
    params = RestoreDiskParams(**_origin(op, host), volume_id=volume_id, other=other)
    async with op.db.transaction() as tx:
        await _defer(op, tx, RESTORE_DISK, volume_id, params)
        await fence(op, tx)


def attach_verb(guest_id: str, device: BlockDevice, instead_of: str | None) -> AttachDisk | SwapDisk:
    disk = devices.disk_of(device)
    if instead_of is None:
        return AttachDisk(guest_id=guest_id, disk=disk)
    return SwapDisk(guest_id=guest_id, volume_id=instead_of, disk=disk)


# Interfaces


async def detach_interface(op: Operation, host: str, step: str, port_id: str) -> None:
    """Detach the interface from the operation's guest: now or deferred."""
    verb = DetachNic(guest_id=str(op.server_id), port_id=port_id)
    if not await call_or_defer(op, host, step, verb):
        await _defer_interface(op, host, port_id)


async def attach_interface(op: Operation, host: str, step: str, interface: Interface) -> None:
    """Attach the interface to the operation's guest: now or deferred."""
    verb = AttachNic(guest_id=str(op.server_id), nic=nic_of(interface))
    if not await call_or_defer(op, host, step, verb):
        await _defer_interface(op, host, interface.port_id)


async def _defer_interface(op: Operation, host: str, port_id: str) -> None:
    async with op.db.transaction() as tx:
        await _defer(op, tx, RESTORE_INTERFACE, port_id, RestoreInterfaceParams(**_origin(op, host), port_id=port_id))
        await fence(op, tx)


# Shares


async def set_shares(op: Operation, host: str, step: str, verb: SetShares) -> None:
    """Set the shares of the operation's guest.

    If the host does not respond, a deferred operation sets the shares that the server has when the host responds.
    """
    if not await call_or_defer(op, host, step, verb):
        async with op.db.transaction() as tx:
            await _defer(op, tx, RESTORE_SHARES, None, RestoreSharesParams(**_origin(op, host)))
            await fence(op, tx)
