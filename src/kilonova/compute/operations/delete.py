"""Delete: the guest goes, its ports go, and its share of the host is given back. It only goes forward."""

from __future__ import annotations

import time

import orjson

from kilonova import clock
from kilonova.compute.operations import leftovers, ports, silence
from kilonova.compute.operations.common import command, server_of
from kilonova.compute.server_groups import model as groups
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Destroy
from kilonova.hosts.transport import HostUnreachable
from kilonova.operations import Failed, Operation, Step
from kilonova.placement.claims import release
from kilonova.store import Transaction


class Delete(Operation):
    kind = "delete"
    action = "delete"
    task_state = "deleting"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step("destroy guest", destroy, undo=None, why="a destroyed guest cannot be had back", deadline=1800),
            Step("drop ports", drop_ports, undo=None, why="the guest that used them is gone", deadline=600),
            Step("settle", settle, undo=None, why="one transaction: share and record", deadline=30, transaction=True),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await model.fail(tx, str(self.server_id), str(error), error.fault)


async def destroy(op: Operation) -> dict[str, str] | None:
    server = await server_of(op)
    host = server["host"]
    if not host:
        return None
    since = time.monotonic()
    try:
        patience = op.services.config.operations.host_seconds
        await command(op, host, "destroy guest", Destroy(guest_id=server["id"]), timeout=patience)
    except HostUnreachable:
        if not await silence.is_silent(op, host, since):
            raise
        return {"left on": host}
    return None


async def drop_ports(op: Operation) -> None:
    server = await server_of(op)
    given = {nic["port_id"] for nic in orjson.loads(server["nics"]) if nic["given"]}
    await ports.drop(op, given)


async def settle(op: Operation, tx: Transaction) -> None:
    left = op.results.get("destroy guest")
    if left:
        await leftovers.leave_guest(op, tx, left["left on"])
    await release(tx, str(op.server_id))
    await groups.leave(tx, str(op.server_id))
    now = clock.now()
    await tx.execute(
        "UPDATE servers SET vm_state = $2, power_state = $3, deleted = TRUE, nics = '[]', terminated_at = $4,"
        " updated_at = $4 WHERE id = $1",
        op.server_id,
        states.DELETED,
        states.NOSTATE,
        now,
    )
