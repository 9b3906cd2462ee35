"""Offload: a shelved server leaves its host. It comes back from its image or volume; it only goes forward."""

from __future__ import annotations

from kilonova.compute.operations import leftovers, ports, silence, volumes
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.compute.operations.silence import HostSilent
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Destroy
from kilonova.ids import new_id
from kilonova.operations import Failed, Operation, Step, begin
from kilonova.placement.claims import release
from kilonova.store import Row, Transaction


class Offload(Harmless):
    kind = "shelve_offload"
    action = "shelveOffload"
    task_state = "shelving_offloading"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        kept = "the image, or its volume, has all that was in the guest"
        return (
            Step("destroy guest", destroy, undo=None, why=kept, deadline=1800),
            Step("reserve volumes", reserve, undo=None, why="whoever starts the guest connects them", deadline=600),
            Step("unbind ports", unbind, undo=None, why="whoever starts the guest binds them", deadline=600),
            Step(
                "settle", settle, undo=None, why="one transaction: share, host and state", deadline=30, transaction=True
            ),
        )


async def begin_offload(tx: Transaction, server: Row) -> str:
    """Begin one that no user has asked for. It has a request id of its own, by which its action is found."""
    return await begin(
        tx,
        Offload,
        server_id=server["id"],
        project_id=server["project_id"],
        user_id=server["user_id"],
        request_id=f"req-{new_id()}",
        host=server["host"],
    )


async def destroy(op: Operation) -> dict[str, str] | None:
    """A host that is silent removes the guest on its return."""
    server = await server_of(op)
    try:
        await silence.demand(op, server["host"], "destroy guest", Destroy(guest_id=server["id"]))
    except Failed as error:
        if not isinstance(error.__cause__, HostSilent):
            raise
        return {"left on": server["host"]}
    return None


async def reserve(op: Operation) -> None:
    await volumes.move(op, "")


async def unbind(op: Operation) -> None:
    await ports.move(op, "")


async def settle(op: Operation, tx: Transaction) -> None:
    left = op.results.get("destroy guest")
    if left:
        await leftovers.leave_guest(op, tx, left["left on"])
    await release(tx, str(op.server_id))
    await model.set_host(tx, str(op.server_id), None, None)
    await model.settle(tx, str(op.server_id), states.SHELVED_OFFLOADED, states.NOSTATE)
    op.host = None
