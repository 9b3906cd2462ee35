"""Live migration: a running server goes to another host, and its guest hardly notices."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any, NoReturn

from msgspec import structs

from kilonova import clock
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations import choosing, leftovers, moving, ports, silence, turns, volumes
from kilonova.compute.operations.choosing import claimed
from kilonova.compute.operations.common import ask, command, fence, server_of
from kilonova.compute.operations.moving import Move
from kilonova.compute.operations.silence import PING, HostSilent
from kilonova.compute.servers import model
from kilonova.hosts.messages import (
    Command,
    Expect,
    HurryMigration,
    LookMigration,
    MigrateLive,
    MigrationState,
    Offer,
    StopMigration,
)
from kilonova.hosts.transport import HostFailed, HostTrouble, HostUnreachable, describe, list_guests
from kilonova.operations import Failed, Operation, Step, Wait
from kilonova.operations.table import Entry
from kilonova.store import Row, Transaction

PREPARE, MIGRATE = "prepare destination", "migrate guest"
STANDBY, ADOPT = "standby volumes", "adopt volumes"
UNDO = f"undo {MIGRATE}"
PULSE = 1.0
"""Seconds between two looks at how far it is."""
DAY = 24 * 3600.0
# What the source says of the guest, and would say whatever the destination were.
_OF_THE_GUEST = ("missing guest", "not running")
_GIB_IN_MB = 1024


class LiveMigrate(Move):
    """`params`: those of Move, and `block` (whether the disks are copied too; null leaves it to the hosts)."""

    kind = "live_migrate"
    action = "live-migration"
    task_state = "migrating"

    @staticmethod
    def steps() -> tuple[Entry, ...]:
        return (
            *choosing.first_steps(moving.choose, claim, give_back),
            Wait(turns.TAKE, key=turns.key, deadline=DAY, poll=turns.look, poll_every=60),
            Step(STANDBY, standby_volumes, undo=unstandby_volumes, deadline=120, cancellable=False),
            Step(PREPARE, prepare, undo=clear_slot, deadline=300),
            Step("bind ports", bind_ports, undo=unbind_ports, deadline=120),
            # How long it may take depends on the guest's size; see `_limit`.
            Step(MIGRATE, migrate, undo=bring_back, deadline=30 * DAY),
            Step(ADOPT, adopt_volumes, undo=None, why=f"undoing '{MIGRATE}' has them where the guest is", deadline=120),
            Step(moving.PORTS, moving.move_ports, undo=moving.return_ports, deadline=120),
            Step(
                moving.HAND_OVER,
                hand_over,
                undo=None,
                why="one transaction: share, host and state",
                deadline=30,
                transaction=True,
            ),
        )


def force_key(operation_id: str) -> str:
    """The event by which somebody asks that it end now."""
    return f"force complete {operation_id}"


async def claim(op: Operation, tx: Transaction) -> dict[str, str]:
    taken = await moving.take(op, tx)
    await turns.join(op, tx)
    return taken


async def give_back(op: Operation, tx: Transaction) -> None:
    await moving.give_back(op, tx)
    await moves.set_transfer(tx, op.id, None)
    await turns.leave(op, tx)


async def standby_volumes(op: Operation) -> None:
    there = claimed(op)
    try:
        await volumes.standby(op, there)
    except Failed as error:
        if isinstance(error.__cause__, HostSilent | HostFailed):
            _leave_destination(op, there, error.__cause__)
        raise


async def unstandby_volumes(op: Operation) -> None:
    async with leftovers.forgoing(op):
        await volumes.unstandby(op)


async def adopt_volumes(op: Operation) -> None:
    await volumes.settle(op, claimed(op))


async def prepare(op: Operation) -> None:
    """Both hosts look whether it can work before anything moves."""
    server, there = await server_of(op), claimed(op)
    try:
        await _make_ready(op, PREPARE, server, server["host"], there)
    except (HostSilent, HostFailed) as error:
        if error.host == server["host"] and (isinstance(error, HostSilent) or error.kind in _OF_THE_GUEST):
            raise Failed(f"The server's host could not {PREPARE}: {error.public}", fault=str(error)) from error
        _leave_destination(op, there, error)


async def clear_slot(op: Operation) -> None:
    if not await _is_left_alone(op, claimed(op)):
        await leftovers.clear(op, claimed(op), f"undo {PREPARE}", slot=op.id)


async def bind_ports(op: Operation) -> None:
    await ports.standby(op, claimed(op))


async def unbind_ports(op: Operation) -> None:
    await ports.unstandby(op, claimed(op))


async def hand_over(op: Operation, tx: Transaction) -> None:
    server = await moving.hand_over(op, tx)
    await model.settle(tx, server["id"], server["vm_state"], server["power_state"])
    if op.results.get(MIGRATE):
        await leftovers.leave_guest(op, tx, server["host"])
    await turns.leave(op, tx)


# Moving the guest


async def migrate(op: Operation) -> dict[str, bool] | None:
    """Ends when the guest runs at the destination. The result says whether the source could not confirm it."""
    here, there = (await server_of(op))["host"], claimed(op)
    while True:
        try:
            await _carry(op, MIGRATE, here, there)
            return _arrived(op, there)
        except HostSilent as error:
            arrived = await _has_guest(op, there)
            if arrived:
                return _arrived(op, there, confirmed=False)
            if arrived is False:
                raise Failed(f"The server's host {error.public}", fault=str(error)) from error
            # With both of them silent nobody knows where it is: ask again until the time is over.
        except HostFailed as error:
            if error.passing:
                raise
            if error.kind == "missing guest" and await _has_guest(op, there):
                return _arrived(op, there)
            if error.kind in ("missing guest", "interrupted"):
                raise Failed(f"The guest could not be moved: {error.public}", fault=str(error)) from error
            _leave_destination(op, there, error)
        except _TimeIsUp as error:
            stopped = False
            with suppress(HostUnreachable, HostFailed, Failed):
                stopped = await _stop(op, here, MIGRATE)
            if not await _has_guest(op, there):
                raise Failed(str(error)) from error
            return _arrived(op, there, confirmed=stopped)


def _arrived(op: Operation, there: str, *, confirmed: bool = True) -> dict[str, bool] | None:
    op.services.scheduler.built(there, True)
    return None if confirmed else {"source silent": True}


class _TimeIsUp(Exception):
    pass


async def _carry(op: Operation, step: str, here: str, there: str) -> None:
    """Have the guest moved, and tell how far it is. Raises HostSilent of `here`, HostFailed, or _TimeIsUp."""
    limit = await _limit(op)
    until = await _step_began(op) + limit
    watch = _Watch(op, step, here)
    verb = MigrateLive(
        guest_id=str(op.server_id),
        destination=there,
        slot=op.id,
        block=op.params["block"],
        reach=await _reach_if_heard(op, there),
    )
    asked = asyncio.create_task(ask(op, here, step, verb))
    try:
        while True:
            await asyncio.wait({asked}, timeout=PULSE)
            if asked.done():
                try:
                    asked.result()
                except HostUnreachable:
                    # To ask again is to join what is under way.
                    asked = asyncio.create_task(ask(op, here, step, verb))
                    await asyncio.sleep(PULSE)
                else:
                    return
            if clock.now() >= until:
                raise _TimeIsUp(f"The guest could not be moved within {limit:g} s")
            await watch.look()
    finally:
        if not asked.cancel():
            asked.exception()  # if it is the second to end, nobody needs to hear of it


class _Watch:
    """What a migration is asked while it runs."""

    def __init__(self, op: Operation, step: str, host: str) -> None:
        self._op, self._step, self._host = op, step, host
        self._heard = time.monotonic()
        self._seen: MigrationState | None = None
        self._hurried = False

    async def look(self) -> None:
        """Tell how far it is, and pass on the wish that it end now. Raises HostSilent."""
        op, host = self._op, self._host
        try:
            state = await _look(op, host)
        except HostUnreachable as error:
            if await silence.is_silent(op, host, self._heard):
                raise HostSilent(host, op.services.config.operations.host_seconds) from error
            state = None
        self._heard = time.monotonic()
        if state is None:
            return
        if state != self._seen:
            await _tell(op, state)
            self._seen = state
        if not self._hurried and await _shall_hurry(op):
            self._hurried = await _hurry(op, host, self._step)


async def _limit(op: Operation) -> float:
    ram = (await server_of(op))["ram"]
    seconds: float = op.services.config.compute.live_migration_seconds * max(1, ram / _GIB_IN_MB)
    return seconds


async def _step_began(op: Operation) -> float:
    """Also before this process came to it."""
    began: float = await op.db.fetch_value("SELECT step_started_at FROM operations WHERE id = $1", op.id)
    return began


async def _look(op: Operation, host: str) -> MigrationState | None:
    verb = LookMigration(guest_id=str(op.server_id))
    try:
        state: MigrationState | None = await op.services.hosts.call(host, Command(host=host, verb=verb), timeout=PING)
    except HostFailed:
        return None  # it cannot tell, but it is there
    return state


async def _tell(op: Operation, state: MigrationState) -> None:
    await op.report(state.percent)
    async with op.db.transaction() as tx:
        await moves.set_transfer(tx, op.id, structs.asdict(state))


async def _shall_hurry(op: Operation) -> bool:
    asked = await op.db.fetch_value("SELECT 1 FROM operation_events WHERE key = $1 LIMIT 1", force_key(op.id))
    return asked is not None


async def _hurry(op: Operation, host: str, step: str) -> bool:
    try:
        await ask(op, host, step, HurryMigration(guest_id=str(op.server_id)), timeout=PING)
    except (HostUnreachable, HostFailed):
        return False
    return True


async def _stop(op: Operation, host: str, step: str) -> bool:
    """Have no migration away from the host. False: the host is silent, or does not obey."""
    since = time.monotonic()
    try:
        await command(op, host, step, StopMigration(guest_id=str(op.server_id)), timeout=PING)
    except HostUnreachable:
        if op.attempt < leftovers.DELAYS and not await silence.is_silent(op, host, since):
            raise
        return False
    except (Failed, HostFailed):
        if not await leftovers.is_hopeless(op):
            raise
        return False
    return True


async def _has_guest(op: Operation, host: str) -> bool | None:
    """Whether the guest is on the host, and not only being received there. None: the host is silent or cannot tell."""
    since = time.monotonic()
    try:
        guests = await list_guests(op.services.hosts, host, timeout=PING)
    except HostUnreachable:
        if op.attempt < leftovers.DELAYS and not await silence.is_silent(op, host, since):
            raise
        return None
    except HostFailed as error:
        if await leftovers.is_hopeless(op):
            return None
        if error.passing:
            raise
        raise Failed(f"The host could not tell of its guests: {error.public}", fault=str(error)) from error
    return any(guest.id == op.server_id and not guest.slot for guest in guests)


async def _make_ready(op: Operation, step: str, server: Row, source: str, destination: str) -> None:
    """Have the source say what the destination must know, and the destination expect the guest.

    Raises HostSilent and HostFailed, of either.
    """
    block = op.params["block"]
    there = await moving.reach(op, destination)
    offer = Offer(guest_id=server["id"], destination=destination, slot=op.id, reach=there)
    offered = await _offered(op, source, step, offer)
    guest = await volumes.guest(op, server, destination)
    here = await moving.reach(op, source)
    expect = Expect(guest=guest, source=source, slot=op.id, block=block, offer=offered, reach=here)
    await silence.insist(op, destination, step, expect)


async def _offered(op: Operation, source: str, step: str, offer: Offer) -> dict[str, Any]:
    try:
        found: dict[str, Any] = await silence.insist(op, source, step, offer)
    except HostFailed as error:
        if error.kind == "unsupported":
            return {}  # an older agent looks when it migrates the guest
        raise
    return found


async def _reach_if_heard(op: Operation, host: str) -> dict[str, str]:
    """Nothing of a host that does not answer: the source finds out by itself what is with the guest."""
    try:
        return (await describe(op.services.hosts, host, timeout=PING)).addresses
    except HostTrouble:
        return {}


def _leave_destination(op: Operation, host: str, error: HostSilent | HostFailed) -> NoReturn:
    """It cannot have the guest; another one may, unless somebody wanted this one."""
    if error.passing:
        raise error
    if op.params["host"] is not None:
        raise Failed(f"The named host cannot have the server: {error.public}", fault=str(error)) from error
    choosing.next_host(op, host, error)


# Back again


async def bring_back(op: Operation) -> None:
    """Have the guest where its server is, and its volumes there too."""
    await _bring_guest_back(op)
    await moving.return_volumes(op)


async def _bring_guest_back(op: Operation) -> None:
    """Have it stopped on its way, brought back, or else the server goes where it is.

    Where nobody can tell where the guest is, it is taken to be where the records say.
    """
    here, there = (await moves.of_operation(op.db, op.id))["source_host"], claimed(op)
    server = await server_of(op)
    if server["host"] == there or await _is_left_alone(op, there):
        return  # an earlier run went after the guest, or has given it up
    stayed = await _has_guest(op, here) if await _stop(op, here, UNDO) else None
    if stayed:
        return
    if stayed is None:
        # What still runs there must not arrive after the question whether it has arrived.
        await leftovers.clear(op, there, UNDO, slot=op.id)
    arrived = await _has_guest(op, there)
    if arrived is False or (arrived is None and stayed is None):
        return
    deleted = await model.is_being_deleted(op.db, str(op.server_id))
    if arrived and stayed is False and not deleted and await _carry_back(op, server, here, there):
        return
    # What an earlier run may have made ready for it.
    await leftovers.clear(op, here, UNDO, slot=op.id)
    if deleted:
        await leftovers.clear(op, there, UNDO)
    else:
        await _go_after(op, there)


async def _carry_back(op: Operation, server: Row, here: str, there: str) -> bool:
    try:
        await volumes.standby(op, here)
        await _make_ready(op, UNDO, server, there, here)
        await _carry(op, UNDO, there, here)
    except (HostSilent, HostFailed, Failed, _TimeIsUp) as error:
        if isinstance(error, HostTrouble) and error.passing:
            raise
        await _stop(op, there, UNDO)
        await leftovers.clear(op, here, UNDO, slot=op.id)
        return await _has_guest(op, here) is True
    return True


async def _go_after(op: Operation, there: str) -> None:
    """The guest cannot come back, so that the server is at the destination although its migration failed."""
    await ports.move(op, there)
    await volumes.settle(op, there)
    async with op.db.transaction() as tx:
        host = await tx.fetch_value("SELECT host FROM servers WHERE id = $1 FOR UPDATE", op.server_id)
        if host == there:
            return
        await moving.exchange_shares(op, tx)
        await leftovers.leave_guest(op, tx, host)
        await fence(op, tx)


async def _is_left_alone(op: Operation, there: str) -> bool:
    """Whether the destination is to clear what it has of the guest on its return."""
    return await leftovers.is_left(op, there) or await leftovers.is_left(op, there, slot=op.id)
