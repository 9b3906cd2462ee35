"""What operations leave behind for hosts that do not answer, or refuse: durable operations of their own, for ever.

`clear`, `restore` and `park` are for undo steps: they do it now, or leave it to be done on the host's return. A host
whose guests are to be cleared does not count as up until that is done.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kilonova import clock
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations import volumes
from kilonova.compute.operations.common import command
from kilonova.compute.operations.silence import PING, answers, is_silent
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import (
    VERBS,
    Change,
    Command,
    Destroy,
    Discard,
    Disk,
    GuestVerb,
    Park,
    PowerOff,
    PowerOn,
    Unpark,
)
from kilonova.hosts.transport import HostFailed, HostUnreachable, StaleEpoch
from kilonova.operations import Failed, Operation, Passing, Step, begin
from kilonova.store import Row, Transaction

# What a host says of a guest that nothing can or need be done to any more.
GONE = ("missing guest", "no such slot")
STILL = ("not running",)
FOR_EVER = 100 * 365 * 24 * 3600.0
# So often a host that answers may refuse to undo something, or not get it done: by the engine's pauses that is about a
# minute and ten. Whoever waits behind the undoing, to delete the server for instance, shall not wait for ever.
REFUSALS, DELAYS = 10, 20


class ClearGuest(Operation):
    """Destroy a guest that may be on a host where its server is no longer.

    `params`: `guest_id`, `host`, `slot` (null), and of the command that may have put it there `operation`, `round`, and
    a higher `epoch`, so that the host refuses that command if it comes late.
    """

    kind = "clear guest"
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        why = "nobody wants the guest back"
        return (Step("destroy guest", _clear, undo=None, why=why, deadline=FOR_EVER),)


class ClearSlot(Operation):
    """Discard what a host may keep of a guest in a slot. It does not run, so the host counts as up all the while.

    `params`: those of ClearGuest.
    """

    kind = "clear slot"
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        why = "nobody wants the guest back"
        return (Step("discard guest", _clear, undo=None, why=why, deadline=FOR_EVER),)


class RestoreGuest(Operation):
    """Have a guest as its server's record says it is: out of the slot, and running or not; or gone, as the server is.

    `params`: those of ClearGuest, and `running`; and `verbs`, where more is to be done than to switch it on or off.
    """

    kind = "restore guest"
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        why = "it is the undoing of something else"
        return (Step("restore guest", _restore, undo=None, why=why, deadline=FOR_EVER),)


class ParkGuest(Operation):
    """Put a guest back into the slot that it may have been taken out of, for a revert that failed.

    `params`: those of ClearGuest.
    """

    kind = "park guest again"
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        why = "it is the undoing of something else"
        return (Step("park guest again", _park, undo=None, why=why, deadline=FOR_EVER),)


async def clear(op: Operation, host: str, step: str, *, slot: str | None = None, leave: bool = True) -> None:
    """Have the operation's guest, or what is in the slot, gone from the host: now, or on its return.

    `leave=False`: a silent host is not told to do so on its return, because something else is left to it that does.
    """
    verb = _clearing(str(op.server_id), slot)
    if not await now_or_later(op, host, step, verb) and leave:
        async with op.db.transaction() as tx:
            await leave_guest(op, tx, host, slot=slot)


async def restore(
    op: Operation, host: str, step: str, *, running: bool, slot: str | None = None, aside: str | None = None
) -> None:
    """Have the operation's guest on the host again as it was: now, or on its return.

    A server that is about to be deleted does not need it, nor does a guest that is gone. One that is to come out of the
    operation's slot on the host's return will be as it was then; the host must not hear of the operation before.
    """
    if slot is None and (
        await model.is_being_deleted(op.db, str(op.server_id)) or await is_unrestored(op, host, slot=op.id)
    ):
        return
    disks = await volumes.disks(op) if slot is not None else []
    for verb in _restoring(str(op.server_id), slot, aside, running, disks):
        if not await now_or_later(op, host, step, verb):
            async with op.db.transaction() as tx:
                await _leave(op, tx, RestoreGuest, host, slot, running=running, aside=aside)
            return


async def reverse(op: Operation, host: str, step: str, *verbs: type[GuestVerb], running: bool) -> None:
    """Have these done to the operation's guest, so that it is as it was: now, or on the host's return.

    `running`: whether the guest runs then. One that stands still by itself is left so.
    """
    if await model.is_being_deleted(op.db, str(op.server_id)):
        return
    for verb in verbs:
        if not await now_or_later(op, host, step, _change(verb, str(op.server_id)), done=GONE + STILL):
            names = [str(one.__struct_config__.tag) for one in verbs]
            async with op.db.transaction() as tx:
                await _leave(op, tx, RestoreGuest, host, None, running=running, verbs=names)
            return


async def leave_stopped(op: Operation, tx: Transaction, host: str) -> None:
    """Have the guest switched off when the host is back, unless somebody wants it otherwise by then."""
    await _leave(op, tx, RestoreGuest, host, None, running=False)


async def park(op: Operation, host: str, step: str, *, slot: str) -> None:
    """Have the operation's guest in the slot again, where another host has the server: now, or on the host's return."""
    for verb in _parking(str(op.server_id), slot):
        if not await now_or_later(op, host, step, verb):
            async with op.db.transaction() as tx:
                await _leave(op, tx, ParkGuest, host, slot)
            return


async def leave_guest(op: Operation, tx: Transaction, host: str, *, slot: str | None = None) -> None:
    """Have the operation's guest, or what is in the slot, gone when the host is back. Repeating it changes nothing."""
    await _leave(op, tx, _clearer(slot), host, slot)


async def is_left(op: Operation, host: str, *, slot: str | None = None) -> bool:
    """Whether the operation has left this to be cleared, which the host would refuse if it were spoken to again."""
    possible = [identity_of(op, _clearer(slot), host, slot, epoch) for epoch in range(1, op.epoch + 1)]
    return bool(await op.db.fetch_value("SELECT 1 FROM operations WHERE id = ANY($1) LIMIT 1", possible))


async def is_unrestored(op: Operation, host: str, *, slot: str) -> bool:
    """Whether the host is still to take the guest out of the slot, as an earlier round has left it."""
    possible = [identity_of(op, RestoreGuest, host, slot, epoch) for epoch in range(1, op.epoch + 1)]
    sql = "SELECT 1 FROM operations WHERE id = ANY($1) AND finished_at IS NULL LIMIT 1"
    return bool(await op.db.fetch_value(sql, possible))


async def is_hopeless(op: Operation) -> bool:
    """Whether a host has refused something so often that the operation shall end without it."""
    return op.attempt >= REFUSALS or (op.attempt > 0 and await model.is_being_deleted(op.db, str(op.server_id)))


@asynccontextmanager
async def forgoing(op: Operation) -> AsyncIterator[None]:
    """For what an undo step asks of another service: refused too often, it is forgone, and the doctor tells of it."""
    try:
        yield
    except Failed:
        if not await is_hopeless(op):
            raise


async def now_or_later(op: Operation, host: str, step: str, verb: Change, done: tuple[str, ...] = GONE) -> bool:
    """False: the host is silent, or does not do it however often it is asked."""
    since = time.monotonic()
    try:
        await command(op, host, step, verb, timeout=PING)
    except HostUnreachable:
        # Whoever goes to the next host because this one is silent need not find that out again.
        if host in op.note.get("tried", {}) or op.attempt >= DELAYS:
            return False
        if not await is_silent(op, host, since):
            raise
        return False
    except (Failed, HostFailed) as error:
        if isinstance(error.__cause__, HostFailed) and error.__cause__.kind in done:
            return True
        if not await is_hopeless(op):
            raise
        return False
    return True


async def _leave(
    op: Operation, tx: Transaction, kind: type[Operation], host: str, slot: str | None, **more: Any
) -> None:
    await leave(op, tx, kind, host, slot, {"slot": slot, **more})


async def leave(
    op: Operation, tx: Transaction, kind: type[Operation], host: str, part: str | None, what: dict[str, Any]
) -> None:
    """Once, however often it is tried. `part`: of the guest, which tells it from others that are left there."""
    identity = identity_of(op, kind, host, part, op.epoch)
    if await tx.fetch_value("SELECT 1 FROM operations WHERE id = $1", identity):
        return
    fence = {"operation": op.id, "round": op.round, "epoch": op.epoch + 1}
    await begin(
        tx,
        kind,
        params={"guest_id": op.server_id, "host": host, **fence, **what},
        project_id=op.project_id,
        user_id=op.user_id,
        request_id=op.request_id,
        host=host,
        operation_id=identity,
    )


def identity_of(op: Operation, kind: type[Operation], host: str, part: str | None, epoch: int) -> str:
    return str(uuid.uuid5(uuid.UUID(op.id), f"{kind.kind} {host} {part} {epoch}"))


async def _clear(op: Operation) -> None:
    host, guest_id, slot = op.params["host"], op.params["guest_id"], op.params.get("slot")
    server = await _server(op)
    if slot is None and server is not None and server["host"] == host and not server["deleted"]:
        raise Passing(f"{host}: the server is there")
    await fenced(op, _clearing(guest_id, slot))
    async with op.db.transaction() as tx:
        await tx.execute(
            "UPDATE moves SET outcome = 'cleaned', updated_at = $3"
            " WHERE operation_id = $1 AND type = 'evacuation' AND source_host = $2 AND outcome IS NULL",
            op.params["operation"],
            host,
            clock.now(),
        )


async def _restore(op: Operation) -> None:
    """What nobody comes back to any more is removed instead, where it is in a slot."""
    host, slot, running = op.params["host"], op.params.get("slot"), op.params["running"]
    server = await idle(op)
    if server is None or server["host"] != host or await _moved_since(op):
        if slot is not None and not await _is_kept(op, server):
            await fenced(op, _clearing(op.params["guest_id"], slot))
        return
    if slot is None and (server["power_state"] == states.RUNNING) != running:
        return  # somebody wanted it otherwise since
    disks = await volumes.disks_of(op.db, server["id"]) if slot is not None else []
    for verb in _asked(op) or _restoring(server["id"], slot, op.params.get("aside"), running, disks):
        await fenced(op, verb)


def _asked(op: Operation) -> list[Change]:
    guest_id = op.params["guest_id"]
    return [_change(VERBS[name], guest_id) for name in op.params.get("verbs", ())]


def _change(verb: Any, guest_id: str) -> Change:
    change: Change = verb(guest_id=guest_id)
    return change


async def _park(op: Operation) -> None:
    guest_id, slot = op.params["guest_id"], op.params["slot"]
    server = await idle(op)
    if server is not None and server["host"] == op.params["host"]:
        return
    for verb in _parking(guest_id, slot):
        await fenced(op, verb)
    if not await _is_kept(op, server):
        await fenced(op, _clearing(guest_id, slot))


async def _is_kept(op: Operation, server: Row | None) -> bool:
    """Whether the server may yet be reverted to what is in the slot."""
    move = await moves.waiting(op.db, op.params["guest_id"])
    return server is not None and move is not None and move["operation_id"] == op.params["slot"]


async def idle(op: Operation) -> Row | None:
    """The server, unless it is deleted. Whatever happens to it may yet come to this host, and is waited for."""
    busy = "SELECT 1 FROM operations WHERE server_id = $1 AND finished_at IS NULL LIMIT 1"
    if await op.db.fetch_value(busy, op.params["guest_id"]):
        raise Passing(f"{op.params['host']}: the server is busy")
    server = await _server(op)
    return None if server is None or server["deleted"] else server


async def _moved_since(op: Operation) -> bool:
    """Whether the operation that left this behind succeeded after all, or a later one moved or rebuilt the server."""
    return bool(await op.db.fetch_value(_MOVED, op.params["operation"], op.params["guest_id"]))


async def fenced(op: Operation, verb: Change) -> None:
    """Ask on behalf of the operation that left this behind."""
    host = op.params["host"]
    if await op.db.fetch_one("SELECT 1 AS one FROM hypervisors WHERE host = $1", host) is None:
        return  # a host that an operator has removed does not come back
    if not await answers(op, host):
        raise HostUnreachable(host, "no answer")
    fence = {"operation": op.params["operation"], "round": op.params["round"], "epoch": op.params["epoch"]}
    try:
        await op.services.hosts.call(host, Command(host=host, step=op.kind, verb=verb, **fence))
    except StaleEpoch:
        return  # the operation itself came back to it, later than this was asked for
    except HostFailed as error:
        if error.kind not in GONE + STILL:
            raise Passing(str(error)) from error


async def _server(op: Operation) -> Row | None:
    sql = "SELECT id, host, deleted, power_state FROM servers WHERE id = $1"
    return await op.db.fetch_one(sql, op.params["guest_id"])


def _clearer(slot: str | None) -> type[Operation]:
    return ClearGuest if slot is None else ClearSlot


def _clearing(guest_id: str, slot: str | None) -> Change:
    return Destroy(guest_id=guest_id) if slot is None else Discard(guest_id=guest_id, slot=slot)


def _restoring(guest_id: str, slot: str | None, aside: str | None, running: bool, disks: list[Disk]) -> list[Change]:
    if slot is None:
        return [PowerOn(guest_id=guest_id) if running else PowerOff(guest_id=guest_id)]
    before = _parking(guest_id, aside) if aside is not None else []
    return [*before, Unpark(guest_id=guest_id, slot=slot, start=running, disks=disks)]


def _parking(guest_id: str, slot: str) -> list[Change]:
    return [PowerOff(guest_id=guest_id), Park(guest_id=guest_id, slot=slot)]


_MOVED = """
SELECT 1 FROM operations o LEFT JOIN moves m ON m.operation_id = o.id
WHERE o.server_id = $2 AND (m.operation_id IS NOT NULL OR o.kind IN ('rebuild', 'reimage')) AND o.state = 'done'
    AND o.seq >= (SELECT seq FROM operations WHERE id = $1) LIMIT 1
"""
