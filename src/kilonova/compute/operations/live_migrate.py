"""Live-migrate a server: move its running guest to another host."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any, NoReturn

from msgspec import structs

from kilonova import clock
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import choose, cleanup, hosts, migration_queue, move, ports, volumes
from kilonova.compute.operations.steps.choose import claimed_host
from kilonova.compute.operations.steps.hosts import (
    PROBE_TIMEOUT_SECONDS,
    HostNotResponding,
    call_once,
    call_once_or_fail,
)
from kilonova.compute.operations.steps.move import Move
from kilonova.compute.operations.steps.server import fence, server_of
from kilonova.compute.servers import model
from kilonova.hosts.messages import Command, MigrationState
from kilonova.hosts.messages.verbs import (
    CheckMigrationSource,
    ForceCompleteMigration,
    GetMigration,
    MigrateLive,
    PrepareMigration,
    StopMigration,
)
from kilonova.hosts.transport import HostCallError, HostFailed, HostUnreachable, describe, list_guests
from kilonova.operations import Failed, Operation, Step, Wait, transaction_step
from kilonova.operations.definition import Entry
from kilonova.store import Row, Transaction

PREPARE, MIGRATE = "prepare destination", "migrate guest"
STANDBY, ADOPT = "standby volumes", "adopt volumes"
UNDO = f"undo {MIGRATE}"
# Seconds between two reads of the progress.
PROGRESS_SECONDS = 1.0
DAY_SECONDS = 24 * 3600.0
# Errors of the source that another destination would not avoid.
_GUEST_ERRORS = ("missing guest", "not running")
_GIB_IN_MB = 1024


class LiveMigrate(Move):
    """`params`: those of Move, and `block` (whether disks are copied; null: the hosts decide)."""

    kind = "live_migrate"
    action = "live-migration"
    task_state = "migrating"

    @staticmethod
    def steps() -> tuple[Entry, ...]:
        return (
            *choose.first_steps(move.choose_host, claim, release_claim),
            Wait(
                migration_queue.WAIT_FOR_SLOT,
                key=migration_queue.slot_event,
                deadline=DAY_SECONDS,
                poll=migration_queue.recheck,
                poll_every=60,
            ),
            Step(STANDBY, standby_volumes, undo=drop_standby_volumes, deadline=120, cancellable=False),
            Step(PREPARE, prepare, undo=discard_slot, deadline=300),
            Step("bind ports", bind_ports, undo=unbind_ports, deadline=120),
            # `_limit` sets the real limit, by the guest's memory.
            Step(MIGRATE, migrate, undo=bring_back, deadline=30 * DAY_SECONDS),
            Step(
                ADOPT,
                adopt_volumes,
                undo=None,
                why=f"undoing '{MIGRATE}' connects them to the guest's host",
                deadline=120,
            ),
            Step(move.PORTS, move.move_ports, undo=move.return_ports, deadline=120),
            transaction_step(move.HAND_OVER, hand_over, "allocation, host and state"),
        )


def force_key(operation_id: str) -> str:
    """The event of a request to force the migration to complete."""
    return f"force complete {operation_id}"


async def claim(op: Operation, tx: Transaction) -> dict[str, str]:
    taken = await move.claim(op, tx)
    await migration_queue.join_queue(op, tx)
    return taken


async def release_claim(op: Operation, tx: Transaction) -> None:
    await move.release_claim(op, tx)
    await moves.set_transfer(tx, op.id, None)
    await migration_queue.leave_queue(op, tx)


async def standby_volumes(op: Operation) -> None:
    there = claimed_host(op)
    try:
        await volumes.prepare_standby(op, there)
    except Failed as error:
        if isinstance(error.__cause__, HostNotResponding | HostFailed):
            _try_next_destination(op, there, error.__cause__)
        raise


async def drop_standby_volumes(op: Operation) -> None:
    async with cleanup.tolerate_refusals(op):
        await volumes.drop_standby(op)


async def adopt_volumes(op: Operation) -> None:
    await volumes.settle(op, claimed_host(op))


async def prepare(op: Operation) -> None:
    """Have both hosts check that the migration can work, and the destination prepare for the guest."""
    server, there = await server_of(op), claimed_host(op)
    try:
        await _prepare_hosts(op, PREPARE, server, server["host"], there)
    except (HostNotResponding, HostFailed) as error:
        if error.host == server["host"] and (isinstance(error, HostNotResponding) or error.kind in _GUEST_ERRORS):
            raise Failed(f"The server's host could not {PREPARE}: {error.public}", fault=str(error)) from error
        _try_next_destination(op, there, error)


async def discard_slot(op: Operation) -> None:
    if not await _is_cleanup_deferred(op, claimed_host(op)):
        await cleanup.clean_up(op, claimed_host(op), f"undo {PREPARE}", slot=op.id)


async def bind_ports(op: Operation) -> None:
    await ports.prepare_standby(op, claimed_host(op))


async def unbind_ports(op: Operation) -> None:
    await ports.drop_standby(op, claimed_host(op))


async def hand_over(op: Operation, tx: Transaction) -> None:
    server = await move.complete_move(op, tx)
    await model.settle(tx, server["id"], server["vm_state"], server["power_state"])
    if op.results.get(MIGRATE):
        await cleanup.defer_clean_up(op, tx, server["host"])
    await migration_queue.leave_queue(op, tx)


# Move the guest


async def migrate(op: Operation) -> dict[str, bool] | None:
    """Migrate the guest. The result says whether the source did not respond at the end."""
    here, there = (await server_of(op))["host"], claimed_host(op)
    while True:
        try:
            await _migrate(op, MIGRATE, here, there)
            return _arrived(op, there)
        except HostNotResponding as error:
            arrived = await _has_guest(op, there)
            if arrived:
                return _arrived(op, there, confirmed=False)
            if arrived is False:
                raise Failed(f"The server's host {error.public}", fault=str(error)) from error
            # Both hosts do not respond, so the guest's host is unknown: call again until the time limit.
        except HostFailed as error:
            if error.passing:
                raise
            if error.kind == "missing guest" and await _has_guest(op, there):
                return _arrived(op, there)
            if error.kind in ("missing guest", "interrupted"):
                raise Failed(f"The guest could not be moved: {error.public}", fault=str(error)) from error
            _try_next_destination(op, there, error)
        except _TimeLimitExceeded as error:
            stopped = False
            with suppress(HostUnreachable, HostFailed, Failed):
                stopped = await _stop(op, here, MIGRATE)
            if not await _has_guest(op, there):
                raise Failed(str(error)) from error
            return _arrived(op, there, confirmed=stopped)


def _arrived(op: Operation, there: str, *, confirmed: bool = True) -> dict[str, bool] | None:
    op.services.scheduler.record_build(there, True)
    return None if confirmed else {"source unreachable": True}


class _TimeLimitExceeded(Exception):
    pass


async def _migrate(op: Operation, step: str, here: str, there: str) -> None:
    """Migrate the guest and report progress. Raises HostNotResponding of `here`, HostFailed or _TimeLimitExceeded."""
    limit = await _limit(op)
    until = await _step_began(op) + limit
    watch = _ProgressWatch(op, step, here)
    verb = MigrateLive(
        guest_id=str(op.server_id),
        destination=there,
        slot=op.id,
        block=op.params["block"],
        reach=await _addresses_or_none(op, there),
    )
    task = asyncio.create_task(call_once(op, here, step, verb))
    try:
        while True:
            await asyncio.wait({task}, timeout=PROGRESS_SECONDS)
            if task.done():
                try:
                    task.result()
                except HostUnreachable:
                    # The host joins a repeated call to the running migration.
                    task = asyncio.create_task(call_once(op, here, step, verb))
                    await asyncio.sleep(PROGRESS_SECONDS)
                else:
                    return
            if clock.now() >= until:
                raise _TimeLimitExceeded(f"The guest could not be moved within {limit:g} s")
            await watch.check()
    finally:
        if not task.cancel():
            task.exception()  # retrieved, so that asyncio does not log it


class _ProgressWatch:
    """Reads the progress of a running migration, and forces its completion on request."""

    def __init__(self, op: Operation, step: str, host: str) -> None:
        self._op, self._step, self._host = op, step, host
        self._heard = time.monotonic()
        self._seen: MigrationState | None = None
        self._forced = False

    async def check(self) -> None:
        """Report the progress, and pass on a request to complete. Raises HostNotResponding."""
        op, host = self._op, self._host
        try:
            state = await _read_progress(op, host)
        except HostUnreachable as error:
            if await hosts.is_unresponsive(op, host, self._heard):
                raise HostNotResponding(host, op.services.config.operations.host_timeout_seconds) from error
            state = None
        self._heard = time.monotonic()
        if state is None:
            return
        if state != self._seen:
            await _report(op, state)
            self._seen = state
        if not self._forced and await _is_completion_forced(op):
            self._forced = await _force_complete(op, host, self._step)


async def _limit(op: Operation) -> float:
    ram = (await server_of(op))["ram"]
    seconds: float = op.services.config.compute.live_migration_seconds_per_gib * max(1, ram / _GIB_IN_MB)
    return seconds


async def _step_began(op: Operation) -> float:
    """When the step first started, also in another process."""
    began: float = await op.db.fetch_value("SELECT step_started_at FROM operations WHERE id = $1", op.id)
    return began


async def _read_progress(op: Operation, host: str) -> MigrationState | None:
    verb = GetMigration(guest_id=str(op.server_id))
    try:
        state: MigrationState | None = await op.services.hosts.call(
            host, Command(host=host, verb=verb), timeout=PROBE_TIMEOUT_SECONDS
        )
    except HostFailed:
        return None  # the host responds but has no progress
    return state


async def _report(op: Operation, state: MigrationState) -> None:
    await op.report(state.percent)
    async with op.db.transaction() as tx:
        await moves.set_transfer(tx, op.id, structs.asdict(state))


async def _is_completion_forced(op: Operation) -> bool:
    event = await op.db.fetch_value("SELECT 1 FROM operation_events WHERE key = $1 LIMIT 1", force_key(op.id))
    return event is not None


async def _force_complete(op: Operation, host: str, step: str) -> bool:
    try:
        await call_once(
            op, host, step, ForceCompleteMigration(guest_id=str(op.server_id)), timeout=PROBE_TIMEOUT_SECONDS
        )
    except (HostUnreachable, HostFailed):
        return False
    return True


async def _stop(op: Operation, host: str, step: str) -> bool:
    """Stop the migration on its source. Returns False if the host does not respond or refuses."""
    since = time.monotonic()
    try:
        await call_once_or_fail(
            op, host, step, StopMigration(guest_id=str(op.server_id)), timeout=PROBE_TIMEOUT_SECONDS
        )
    except HostUnreachable:
        if op.attempt < cleanup.MAX_DELAYS and not await hosts.is_unresponsive(op, host, since):
            raise
        return False
    except (Failed, HostFailed):
        if not await cleanup.is_refused_too_often(op):
            raise
        return False
    return True


async def _has_guest(op: Operation, host: str) -> bool | None:
    """Whether the guest runs on the host; an incoming guest does not count. None: the host cannot tell."""
    since = time.monotonic()
    try:
        guests = await list_guests(op.services.hosts, host, timeout=PROBE_TIMEOUT_SECONDS)
    except HostUnreachable:
        if op.attempt < cleanup.MAX_DELAYS and not await hosts.is_unresponsive(op, host, since):
            raise
        return None
    except HostFailed as error:
        if await cleanup.is_refused_too_often(op):
            return None
        if error.passing:
            raise
        raise Failed(f"The host could not tell of its guests: {error.public}", fault=str(error)) from error
    return any(guest.id == op.server_id and not guest.slot for guest in guests)


async def _prepare_hosts(op: Operation, step: str, server: Row, source: str, destination: str) -> None:
    """Get the guest's description from the source, and have the destination expect the guest.

    Raises HostNotResponding and HostFailed of either host.
    """
    block = op.params["block"]
    there = await move.addresses_of_host(op, destination)
    offer = CheckMigrationSource(guest_id=server["id"], destination=destination, slot=op.id, reach=there)
    offered = await _get_offer(op, source, step, offer)
    guest = await volumes.describe_guest(op, server, destination)
    here = await move.addresses_of_host(op, source)
    expect = PrepareMigration(guest=guest, source=source, slot=op.id, block=block, offer=offered, reach=here)
    await hosts.call(op, destination, step, expect)


async def _get_offer(op: Operation, source: str, step: str, offer: CheckMigrationSource) -> dict[str, Any]:
    try:
        found: dict[str, Any] = await hosts.call(op, source, step, offer)
    except HostFailed as error:
        if error.kind == "unsupported":
            return {}  # an older agent checks when it migrates the guest
        raise
    return found


async def _addresses_or_none(op: Operation, host: str) -> dict[str, str]:
    """The addresses of the host; empty if it does not respond, since the source then finds out itself."""
    try:
        return (await describe(op.services.hosts, host, timeout=PROBE_TIMEOUT_SECONDS)).addresses
    except HostCallError:
        return {}


def _try_next_destination(op: Operation, host: str, error: HostNotResponding | HostFailed) -> NoReturn:
    """Try another destination, or fail if the request named this one."""
    if error.passing:
        raise error
    if op.params["host"] is not None:
        raise Failed(f"The requested host cannot run the server: {error.public}", fault=str(error)) from error
    choose.try_next_host(op, host, error)


# Undo


async def bring_back(op: Operation) -> None:
    """Undo `migrate`: bring guest and volumes back to the server's host."""
    await _bring_guest_back(op)
    await move.return_volumes(op)


async def _bring_guest_back(op: Operation) -> None:
    """Stop the migration or migrate the guest back. If neither works, the server follows its guest.

    If no host can tell where the guest is, the server's row decides.
    """
    here, there = (await moves.get_by_operation(op.db, op.id))["source_host"], claimed_host(op)
    server = await server_of(op)
    if server["host"] == there or await _is_cleanup_deferred(op, there):
        return  # an earlier run has followed the guest or deferred its cleanup
    stayed = await _has_guest(op, here) if await _stop(op, here, UNDO) else None
    if stayed:
        return
    if stayed is None:
        # First discard the incoming guest, so that it cannot arrive after the next check.
        await cleanup.clean_up(op, there, UNDO, slot=op.id)
    arrived = await _has_guest(op, there)
    if arrived is False or (arrived is None and stayed is None):
        return
    deleted = await model.is_being_deleted(op.db, str(op.server_id))
    if arrived and stayed is False and not deleted and await _migrate_back(op, server, here, there):
        return
    # An earlier run may have prepared this host for the guest.
    await cleanup.clean_up(op, here, UNDO, slot=op.id)
    if deleted:
        await cleanup.clean_up(op, there, UNDO)
    else:
        await _follow_guest(op, there)


async def _migrate_back(op: Operation, server: Row, here: str, there: str) -> bool:
    try:
        await volumes.prepare_standby(op, here)
        await _prepare_hosts(op, UNDO, server, there, here)
        await _migrate(op, UNDO, there, here)
    except (HostNotResponding, HostFailed, Failed, _TimeLimitExceeded) as error:
        if isinstance(error, HostCallError) and error.passing:
            raise
        await _stop(op, there, UNDO)
        await cleanup.clean_up(op, here, UNDO, slot=op.id)
        return await _has_guest(op, here) is True
    return True


async def _follow_guest(op: Operation, there: str) -> None:
    """Move the server to the destination, although its migration failed, because the guest cannot come back."""
    await ports.move(op, there)
    await volumes.settle(op, there)
    async with op.db.transaction() as tx:
        host = await tx.fetch_value("SELECT host FROM servers WHERE id = $1 FOR UPDATE", op.server_id)
        if host == there:
            return
        await move.swap_to_destination(op, tx)
        await cleanup.defer_clean_up(op, tx, host)
        await fence(op, tx)


async def _is_cleanup_deferred(op: Operation, there: str) -> bool:
    """Whether the cleanup of the guest on the destination is deferred."""
    return await cleanup.is_deferred(op, there) or await cleanup.is_deferred(op, there, slot=op.id)
