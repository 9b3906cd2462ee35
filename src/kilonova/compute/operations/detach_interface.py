"""Detach an interface: unplug it from the guest, and unbind or delete its port."""

from __future__ import annotations

from typing import Any

from kilonova.compute.operations.steps import cleanup, hosts, interfaces
from kilonova.compute.operations.steps.cleanup import NO_DEADLINE
from kilonova.compute.operations.steps.server import Harmless, fence, server_of
from kilonova.hosts.messages.verbs import DetachNic
from kilonova.hosts.transport import HostFailed
from kilonova.operations import Failed, Operation, Step, begin, transaction_step
from kilonova.store import Transaction

DETACH = "detach nic"


class DetachInterface(Harmless):
    """`params`: `port_id`."""

    kind = "detach_interface"
    action = "detach_interface"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(DETACH, detach, undo=attach_again, deadline=300),
            Step("free port", free, undo=own_again, deadline=120),
            transaction_step("settle", settle, "the interface"),
        )


class DeletePort(Operation):
    """Delete the port of a detached interface. `params`: `owner`, whose ports are deleted."""

    kind = "delete_port"
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        why = "a deleted port cannot be had back"
        return (Step("delete port", delete, undo=None, why=why, deadline=NO_DEADLINE),)


async def detach(op: Operation) -> None:
    """Unplug the interface. A missing guest has none."""
    server, nic = await server_of(op), await _nic(op)
    if nic is None or not server["host"]:
        return
    try:
        verb = DetachNic(guest_id=server["id"], port_id=nic["port_id"])
        await hosts.call_or_fail(op, server["host"], DETACH, verb, takes=hosts.DETACH_TIMEOUT_SECONDS)
    except Failed as error:
        if not (isinstance(error.__cause__, HostFailed) and error.__cause__.kind in cleanup.MISSING):
            raise


async def attach_again(op: Operation) -> None:
    server, nic = await server_of(op), await _nic(op)
    if nic is not None and server["host"]:
        await cleanup.attach_interface(op, server["host"], f"undo {DETACH}", nic)


async def free(op: Operation) -> None:
    """Unbind the port. A port to delete belongs to this operation until then, so that no other server takes it."""
    if (nic := await _nic(op)) is not None:
        await interfaces.release_port(op, nic["port_id"], "" if nic["given"] else op.id)


async def own_again(op: Operation) -> None:
    """Undo `free`. A port that was deleted or taken by another owner stays detached."""
    server, nic = await server_of(op), await _nic(op)
    if nic is None:
        return
    try:
        await interfaces.take_port(op, nic["port_id"], server["host"] or "")
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
    await interfaces.delete_ports(op, op.params["owner"])


async def _remove(op: Operation, tx: Transaction) -> dict[str, Any] | None:
    server = await server_of(op, tx)
    left = [nic for nic in interfaces.interfaces_of(server) if nic["port_id"] != op.params["port_id"]]
    gone = next((nic for nic in interfaces.interfaces_of(server) if nic["port_id"] == op.params["port_id"]), None)
    if gone is not None:
        await interfaces.write(tx, server, left)
    return gone


async def _nic(op: Operation) -> dict[str, Any] | None:
    """The interface, or None if another request has detached it."""
    return interfaces.find(await server_of(op), op.params["port_id"])
