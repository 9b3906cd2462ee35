"""Live-migrate a server: move its running guest to another host."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from msgspec import Struct, field, structs

from kilonova import clock
from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import (
    CLEAN_UP,
    ONCE,
    READ,
    WATCHED,
    GivenUp,
    HostCallFailed,
    Policy,
    Timeout,
    call,
    is_unresponsive,
    read,
)
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import (
    choose,
    cleanup,
    migration_queue,
    move,
    plugged,
    port_attributes,
    ports,
    volumes,
)
from kilonova.compute.operations.steps.choose import Claim, claimed_host
from kilonova.compute.operations.steps.move import Move, MoveParams
from kilonova.compute.operations.steps.server import fence, host_of, server_of
from kilonova.compute.servers import interface_cache, model
from kilonova.compute.servers.server import Server
from kilonova.hosts.messages import MigrationState
from kilonova.hosts.messages.verbs import (
    CheckMigrationSource,
    Describe,
    ForceCompleteMigration,
    GetMigration,
    ListGuests,
    MigrateLive,
    PrepareMigration,
    StopMigration,
)
from kilonova.hosts.transport import (
    GuestMissing,
    GuestNotRunning,
    HostCallError,
    HostNotResponding,
    HostRefused,
    HostUnreachable,
    Interrupted,
    VersionTooOld,
)
from kilonova.network.client import Binding
from kilonova.operations import Entry, Failed, Operation, Step, StepResult, Wait, transaction_step
from kilonova.store import Transaction


class LiveMigrateParams(MoveParams, frozen=True, kw_only=True):
    """`block`: whether disks are copied; None: the hosts decide."""

    block: bool | None


class UnconfirmedArrival(Struct, frozen=True):
    """The guest is at its destination, but the source did not respond at the end."""

    source_unreachable: bool = field(name="source unreachable", default=True)


MIGRATE = StepResult("migrate guest", UnconfirmedArrival)
# How the ports are bound on the destination, by port.
BIND = StepResult("bind ports", dict[str, Binding])
PREPARE = "prepare destination"
STANDBY, ADOPT = "standby volumes", "adopt volumes"
UNDO = f"undo {MIGRATE}"
# Seconds between two reads of the progress.
PROGRESS_SECONDS = 1.0
DAY_SECONDS = 24 * 3600.0
# Outcomes at the source that another destination would not avoid.
_SOURCE_OUTCOMES = (HostNotResponding, GuestMissing, GuestNotRunning)
# A host that responds but refuses has no progress.
_READ_PROGRESS = replace(READ, accepts=(HostRefused,))
# An older agent checks when it migrates the guest.
_CHECK_SOURCE = replace(WATCHED, accepts=(VersionTooOld,))
_GIVE_UP = replace(CLEAN_UP, accepts=())
_GIB_IN_MB = 1024


class LiveMigrate(Move[LiveMigrateParams]):
    kind = kinds.LIVE_MIGRATE
    action = "live-migration"
    task_state = "migrating"

    @staticmethod
    def steps() -> tuple[Entry[LiveMigrate], ...]:
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
            Step(BIND, bind_ports, undo=unbind_ports, deadline=120),
            Step(PREPARE, prepare, undo=discard_slot, deadline=300),
            # `_limit` sets the real limit, by the guest's memory.
            Step(MIGRATE, migrate, undo=bring_back, deadline=30 * DAY_SECONDS),
            Step(
                ADOPT,
                adopt_volumes,
                undo=None,
                why=f"undoing '{MIGRATE}' connects them to the guest's host",
                deadline=120,
            ),
            Step(move.PORTS, move_ports, undo=move.return_ports, deadline=120),
            plugged.wait_for(expected_ports, always_continues=True),
            transaction_step(move.HAND_OVER, hand_over, "allocation, host and state"),
        )


def force_key(operation_id: str) -> str:
    """The event of a request to force the migration to complete."""
    return f"force complete {operation_id}"


async def claim(op: Operation, tx: Transaction) -> Claim:
    taken = await move.claim(op, tx)
    await migration_queue.join_queue(op, tx)
    return taken


async def release_claim(op: Operation, tx: Transaction) -> None:
    await move.release_claim(op, tx)
    await moves.set_transfer(tx, op.id, None)
    await migration_queue.leave_queue(op, tx)


async def standby_volumes(op: LiveMigrate) -> None:
    there = claimed_host(op)
    try:
        await volumes.prepare_standby(op, there)
    except HostCallFailed as failure:
        _try_next_destination(op, there, failure.outcome)


async def drop_standby_volumes(op: Operation) -> None:
    async with cleanup.tolerate_refusals(op):
        await volumes.drop_standby(op)


async def adopt_volumes(op: Operation) -> None:
    await volumes.settle(op, claimed_host(op))


async def prepare(op: LiveMigrate) -> None:
    """Have both hosts check that the migration can work, and the destination prepare for the guest."""
    server, there = await server_of(op), claimed_host(op)
    bound = op.find_result(BIND) or {}
    nics = [interface_cache.with_standby(nic, bound.get(nic.port_id)) for nic in server.nics]
    try:
        await _prepare_hosts(op, PREPARE, structs.replace(server, nics=nics), server.host_name, there)
    except (HostNotResponding, HostRefused) as outcome:
        if outcome.host == server.host and isinstance(outcome, _SOURCE_OUTCOMES):
            raise HostCallFailed(f"The server's host could not {PREPARE}", outcome) from outcome
        _try_next_destination(op, there, outcome)


async def discard_slot(op: Operation) -> None:
    if not await _is_cleanup_deferred(op, claimed_host(op)):
        await cleanup.clean_up(op, claimed_host(op), f"undo {PREPARE}", slot=op.id)


async def bind_ports(op: LiveMigrate) -> dict[str, Binding] | None:
    there = claimed_host(op)
    try:
        bound = await ports.prepare_standby(op, there)
    except HostCallFailed as failure:
        _try_next_destination(op, there, failure.outcome)
    return None if op.services.network.built_in else bound


async def unbind_ports(op: Operation) -> None:
    await ports.drop_standby(op, claimed_host(op))


async def move_ports(op: LiveMigrate) -> None:
    """The guest is there already, so no other host can be tried."""
    await ports.move(op, claimed_host(op))


async def expected_ports(op: LiveMigrate) -> plugged.Expected:
    return plugged.Expected(claimed_host(op), (await server_of(op)).nics)


async def hand_over(op: Operation, tx: Transaction) -> None:
    server = await move.complete_move(op, tx)
    await model.settle_unchanged(tx, server.id)
    if op.find_result(MIGRATE):
        await cleanup.defer_clean_up(op, tx, server.host_name)
    await migration_queue.leave_queue(op, tx)


# Move the guest


async def migrate(op: LiveMigrate) -> UnconfirmedArrival | None:
    here, there = await host_of(op), claimed_host(op)
    while True:
        try:
            await _migrate(op, MIGRATE.name, here, there)
            return _arrived(op, there)
        except HostNotResponding as error:
            arrived = await _has_guest(op, there)
            if arrived:
                return _arrived(op, there, confirmed=False)
            if arrived is False:
                raise Failed(f"The server's host {error.public}", fault=str(error)) from error
            # Both hosts do not respond, so the guest's host is unknown: call again until the time limit.
        except HostRefused as outcome:
            if outcome.passing:
                raise
            if isinstance(outcome, GuestMissing) and await _has_guest(op, there):
                return _arrived(op, there)
            if isinstance(outcome, GuestMissing | Interrupted):
                raise HostCallFailed("The guest could not be moved", outcome) from outcome
            _try_next_destination(op, there, outcome)
        except _TimeLimitExceeded as error:
            stopped = False
            with suppress(HostUnreachable, HostRefused, Failed):
                stopped = await _stop(op, here, MIGRATE.name)
            if not await _has_guest(op, there):
                raise Failed(str(error)) from error
            return _arrived(op, there, confirmed=stopped)


def _arrived(op: Operation, there: str, *, confirmed: bool = True) -> UnconfirmedArrival | None:
    op.services.scheduler.record_build(there, True)
    return None if confirmed else UnconfirmedArrival()


class _TimeLimitExceeded(Exception):
    pass


async def _migrate(op: LiveMigrate, step: str, here: str, there: str) -> None:
    """Migrate the guest and report progress. Raises HostNotResponding of `here`, HostRefused or _TimeLimitExceeded."""
    limit = await _limit(op)
    until = await _step_began(op) + limit
    watch = _ProgressWatch(op, step, here)
    verb = MigrateLive(
        guest_id=str(op.server_id),
        destination=there,
        slot=op.id,
        block=op.params.block,
        reach=await _addresses_or_none(op, there),
    )
    task = asyncio.create_task(call(op, here, step, verb, ONCE))
    try:
        while True:
            await asyncio.wait({task}, timeout=PROGRESS_SECONDS)
            if task.done():
                try:
                    task.result()
                except HostUnreachable:
                    # The host joins a repeated call to the running migration.
                    task = asyncio.create_task(call(op, here, step, verb, ONCE))
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
            state = await read(op, host, GetMigration(guest_id=str(op.server_id)), _READ_PROGRESS)
        except HostUnreachable as error:
            if await is_unresponsive(op, host, self._heard):
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
    ram = (await server_of(op)).ram
    return op.services.config.compute.live_migration_seconds_per_gib * max(1, ram / _GIB_IN_MB)


async def _step_began(op: Operation) -> float:
    """When the step first started, also in another process."""
    began: float = await op.db.fetch_value("SELECT step_started_at FROM operations WHERE id = $1", op.id)
    return began


async def _report(op: Operation, state: MigrationState) -> None:
    await op.report(state.percent)
    async with op.db.transaction() as tx:
        await moves.set_transfer(tx, op.id, state)


async def _is_completion_forced(op: Operation) -> bool:
    event = await op.db.fetch_value("SELECT 1 FROM operation_events WHERE key = $1 LIMIT 1", force_key(op.id))
    return event is not None


async def _force_complete(op: Operation, host: str, step: str) -> bool:
    verb = ForceCompleteMigration(guest_id=str(op.server_id))
    try:
        await call(op, host, step, verb, Policy(timeout=Timeout.PROBE))
    except (HostUnreachable, HostRefused):
        return False
    return True


async def _stop(op: Operation, host: str, step: str) -> bool:
    """Stop the migration on its source. Returns False if the host does not respond or refuses."""
    try:
        await call(op, host, step, StopMigration(guest_id=str(op.server_id)), _GIVE_UP)
    except GivenUp:
        return False
    return True


async def _has_guest(op: Operation, host: str) -> bool | None:
    """Whether the guest runs on the host; an incoming guest does not count. None: the host cannot tell."""
    try:
        guests = await read(op, host, ListGuests(), _GIVE_UP, summary="The host could not tell of its guests")
    except GivenUp:
        return None
    return any(guest.id == op.server_id and not guest.slot for guest in guests or ())


async def _prepare_hosts(op: LiveMigrate, step: str, server: Server, source: str, destination: str) -> None:
    """Get the guest's description from the source, and have the destination expect the guest.

    Raises HostNotResponding and HostRefused of either host.
    """
    there = await move.addresses_of_host(op, destination)
    ticket = choose.move_ticket(op)
    check = CheckMigrationSource(guest_id=server.id, destination=destination, slot=op.id, reach=there, ticket=ticket)
    offer = await call(op, source, step, check, _CHECK_SOURCE) or {}
    guest = await volumes.describe_guest(op, server, destination)
    here = await move.addresses_of_host(op, source)
    expect = PrepareMigration(
        guest=guest, source=source, slot=op.id, block=op.params.block, offer=offer, reach=here, ticket=ticket
    )
    await call(op, destination, step, expect, WATCHED)


async def _addresses_or_none(op: Operation, host: str) -> dict[str, str]:
    """The addresses of the host; empty if it does not respond, since the source then finds out itself."""
    try:
        facts = await read(op, host, Describe())
    except HostCallError:
        return {}
    return facts.addresses if facts else {}


def _try_next_destination(op: LiveMigrate, host: str, outcome: HostCallError) -> NoReturn:
    """Try another destination, or fail if the request named this one."""
    if outcome.passing:
        raise outcome
    if op.params.host is not None:
        raise HostCallFailed("The requested host cannot run the server", outcome) from outcome
    choose.try_next_host(op, host, outcome)


# Undo


async def bring_back(op: LiveMigrate) -> None:
    """Undo `migrate`: bring guest and volumes back to the server's host."""
    await _bring_guest_back(op)
    await move.return_volumes(op)


async def _bring_guest_back(op: LiveMigrate) -> None:
    """Stop the migration or migrate the guest back. If neither works, the server follows its guest.

    If no host can tell where the guest is, the server's row decides.
    """
    here, there = (await moves.get_by_operation(op.db, op.id)).source_host, claimed_host(op)
    server = await server_of(op)
    if server.host == there or await _is_cleanup_deferred(op, there):
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


async def _migrate_back(op: LiveMigrate, server: Server, here: str, there: str) -> bool:
    try:
        await volumes.prepare_standby(op, here)
        await _prepare_hosts(op, UNDO, server, there, here)
        await _migrate(op, UNDO, there, here)
    except (HostNotResponding, HostRefused, Failed, _TimeLimitExceeded) as error:
        if isinstance(error, HostCallError) and error.passing:
            raise
        await _stop(op, there, UNDO)
        await cleanup.clean_up(op, here, UNDO, slot=op.id)
        return await _has_guest(op, here) is True
    return True


async def _follow_guest(op: Operation, there: str) -> None:
    """Move the server to the destination, although its migration failed, because the guest cannot come back."""
    await ports.return_to(op, there, port_attributes.default_providers(op))
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
