"""Detach an interface: taken from the guest, its port set free; a port that was made for the server goes."""

from __future__ import annotations

from typing import Any

from kilonova.compute.operations import left_nics, leftovers, nics, silence
from kilonova.compute.operations.common import Harmless, fence, server_of
from kilonova.hosts.messages import DetachNic
from kilonova.hosts.transport import HostFailed
from kilonova.operations import Failed, Operation, Step, begin
from kilonova.store import Transaction

DETACH = "detach nic"


class DetachInterface(Harmless):
    """`params`: `port_id`."""

    kind = "detach_interface"
    action = "detach_interface"
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(DETACH, detach, undo=attach_again, deadline=300),
            Step("free port", free, undo=own_again, deadline=120),
            Step("settle", settle, undo=None, why="one transaction: the interface", deadline=30, transaction=True),
        )


class DeletePort(Operation):
    """Delete what a detached interface leaves behind. `params`: `owner`, whose ports go."""

    kind = "delete port"
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        why = "a deleted port cannot be had back"
        return (Step("delete port", delete, undo=None, why=why, deadline=leftovers.FOR_EVER),)


async def detach(op: Operation) -> None:
    """A guest that is gone has no interfaces."""
    server, nic = await server_of(op), await _nic(op)
    if nic is None or not server["host"]:
        return
    try:
        verb = DetachNic(guest_id=server["id"], port_id=nic["port_id"])
        await silence.demand(op, server["host"], DETACH, verb, takes=silence.LETTING_GO)
    except Failed as error:
        if not (isinstance(error.__cause__, HostFailed) and error.__cause__.kind in leftovers.GONE):
            raise


async def attach_again(op: Operation) -> None:
    server, nic = await server_of(op), await _nic(op)
    if nic is not None and server["host"]:
        await left_nics.give(op, server["host"], f"undo {DETACH}", nic)


async def free(op: Operation) -> None:
    """A port that is to go belongs to this operation until then, so that nobody takes it."""
    if (nic := await _nic(op)) is not None:
        await nics.set_free(op, nic["port_id"], "" if nic["given"] else op.id)


async def own_again(op: Operation) -> None:
    """What is gone, or somebody else has got meanwhile, is detached after all."""
    server, nic = await server_of(op), await _nic(op)
    if nic is None:
        return
    try:
        await nics.own(op, nic["port_id"], server["host"] or "")
    except Failed:
        async with op.db.transaction() as tx:
            await _remove(op, tx)
            await fence(op, tx)


async def settle(op: Operation, tx: Transaction) -> None:
    nic = await _remove(op, tx)
    if nic is not None and not nic["given"]:
        await begin(
            tx,
            DeletePort,
            params={"owner": op.id},
            project_id=op.project_id,
            user_id=op.user_id,
            request_id=op.request_id,
        )


async def delete(op: Operation) -> None:
    await nics.delete_ports(op, op.params["owner"])


async def _remove(op: Operation, tx: Transaction) -> dict[str, Any] | None:
    server = await server_of(op, tx)
    left = [nic for nic in nics.of(server) if nic["port_id"] != op.params["port_id"]]
    gone = next((nic for nic in nics.of(server) if nic["port_id"] == op.params["port_id"]), None)
    if gone is not None:
        await nics.write(tx, server, left)
    return gone


async def _nic(op: Operation) -> dict[str, Any] | None:
    """None once it is detached, which two may have asked for."""
    return nics.find(await server_of(op), op.params["port_id"])
