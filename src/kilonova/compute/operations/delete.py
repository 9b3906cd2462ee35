"""Delete a server: destroy its guest, release its ports, volumes and allocations. There is no undo.

The guest that an unconfirmed resize has parked and the image of a shelved server are deleted too.
"""

from __future__ import annotations

from kilonova.compute import host_calls
from kilonova.compute import operation_kinds as kinds
from kilonova.compute.block_devices import model as devices
from kilonova.compute.host_calls import HostCallFailed, call
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import cleanup, images, new_volumes, ports, shares, volumes
from kilonova.compute.operations.steps.cleanup import LeftOn
from kilonova.compute.operations.steps.move import end_resize
from kilonova.compute.operations.steps.server import server_of
from kilonova.compute.server_groups import model as groups
from kilonova.compute.server_shares import model as server_shares
from kilonova.compute.servers import model
from kilonova.hosts.transport import HostNotResponding
from kilonova.operations import Entry, Failed, Operation, Step, StepResult, transaction_step
from kilonova.placement.claims import release
from kilonova.store import Transaction

DESTROY = StepResult("destroy guest", LeftOn)
DISCARD = StepResult("discard old guest", LeftOn)
RELEASE, DELETE_VOLUMES = "release volumes", "delete volumes"
# Steps that a server without volumes skips.
WITH_VOLUMES = frozenset({RELEASE, DELETE_VOLUMES})
RELEASE_SHARES = "release shares"
# The step that a server without shares skips.
WITH_SHARES = frozenset({RELEASE_SHARES})
# The delete waits for a volume service or a share service that is down, so that users need not repeat it.
SERVICES_SECONDS = 24 * 3600.0


class Delete(Operation):
    kind = kinds.DELETE
    action = "delete"
    task_state = "deleting"

    @staticmethod
    def steps() -> tuple[Entry[Operation], ...]:
        return (
            Step(DESTROY, destroy, undo=None, why="a destroyed guest cannot be restored", deadline=1800),
            Step(DISCARD, discard, undo=None, why="the resize cannot be reverted any more", deadline=1800),
            Step(
                RELEASE,
                release_volumes,
                undo=None,
                why="the guest that used them is destroyed",
                deadline=SERVICES_SECONDS,
            ),
            Step(
                RELEASE_SHARES,
                shares.release_all,
                undo=None,
                why="the guest that used them is destroyed",
                deadline=SERVICES_SECONDS,
            ),
            Step("drop ports", drop_ports, undo=None, why="the guest that used them is destroyed", deadline=600),
            Step(
                DELETE_VOLUMES,
                new_volumes.delete,
                undo=None,
                why="a deleted volume cannot be restored",
                deadline=SERVICES_SECONDS,
            ),
            transaction_step("settle", settle, "allocations and the server's row"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        """Confirm an unconfirmed resize: a server in error can neither confirm nor revert its resize."""
        await end_resize(tx, await server_of(self, tx), parked=True)
        await model.fail(tx, str(self.server_id), str(error), error.fault)


async def destroy(op: Operation) -> LeftOn | None:
    host = (await server_of(op)).host
    return await _remove_or_leave(op, host, DESTROY.name) if host else None


async def discard(op: Operation) -> LeftOn | None:
    """Discard the guest that an unconfirmed resize has parked on its source."""
    resize = await moves.find_unconfirmed(op.db, str(op.server_id))
    if resize is None:
        return None
    return await _remove_or_leave(op, resize.source_host, DISCARD.name, slot=resize.operation_id)


async def _remove_or_leave(op: Operation, host: str, step: str, *, slot: str | None = None) -> LeftOn | None:
    """Remove the guest. On a host that does not respond, the cleanup is deferred."""
    try:
        await call(op, host, step, cleanup.clean_up_verb(str(op.server_id), slot), host_calls.DELETE)
    except HostCallFailed as failure:
        if isinstance(failure.outcome, HostNotResponding):
            return LeftOn(host)
        raise
    return None


async def release_volumes(op: Operation) -> None:
    await volumes.release(op, *(device.volume for device in await volumes.of_server(op)))


async def drop_ports(op: Operation) -> None:
    server = await server_of(op)
    await ports.release(op, {interface.port_id for interface in server.nics if interface.given})


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    if left := op.find_result(DESTROY):
        await cleanup.defer_clean_up(op, tx, left.host)
    await release(tx, server.id)
    await end_resize(tx, server, parked=op.find_result(DISCARD) is not None)
    await images.begin_delete(tx, op, server.shelved_image_id)
    await groups.leave(tx, server.id)
    await devices.remove_all(tx, server.id)
    await server_shares.remove_all(tx, server.id)
    await model.delete(tx, server.id)
