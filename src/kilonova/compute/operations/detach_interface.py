"""Detach an interface: unplug it from the guest, and unbind or delete its port."""

from __future__ import annotations

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import DETACH_TIMEOUT_SECONDS, UNLESS_MISSING, call
from kilonova.compute.operations.steps import cleanup, interfaces, port_resources
from kilonova.compute.operations.steps.cleanup import NO_DEADLINE
from kilonova.compute.operations.steps.server import Harmless, fence, server_of
from kilonova.compute.servers import model
from kilonova.compute.servers.server import Interface
from kilonova.hosts.messages.verbs import DetachNic
from kilonova.operations import Entry, Failed, Operation, Step, StepResult, begin, transaction_step
from kilonova.placement.partial_release import release_part
from kilonova.store import Transaction

DETACH = "detach nic"
# The resources of the port to release, by provider and class.
FREE = StepResult("free port", dict[str, dict[str, int]])


class DetachInterfaceParams(Struct, frozen=True):
    port_id: str


class DetachInterface(Harmless[DetachInterfaceParams]):
    kind = kinds.DETACH_INTERFACE
    action = "detach_interface"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[DetachInterface], ...]:
        return (
            Step(DETACH, detach, undo=attach_again, deadline=300),
            Step(FREE, free, undo=own_again, deadline=120),
            transaction_step("settle", settle, "the interface and the resources of its port"),
        )


class DeletePortParams(Struct, frozen=True):
    """`owner`: the operation that owns the port."""

    owner: str


class DeletePort(Operation[DeletePortParams]):
    """Delete the port of a detached interface."""

    kind = kinds.DELETE_PORT
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Entry[DeletePort], ...]:
        why = "a deleted port cannot be had back"
        return (Step("delete port", delete, undo=None, why=why, deadline=NO_DEADLINE),)


async def detach(op: DetachInterface) -> None:
    """Unplug the interface. A missing guest has none."""
    server = await server_of(op)
    interface = server.find_interface(op.params.port_id)
    if interface is None or not server.host:
        return
    verb = DetachNic(guest_id=server.id, port_id=interface.port_id)
    await call(op, server.host, DETACH, verb, UNLESS_MISSING, takes=DETACH_TIMEOUT_SECONDS)


async def attach_again(op: DetachInterface) -> None:
    server = await server_of(op)
    interface = server.find_interface(op.params.port_id)
    if interface is not None and server.host:
        await cleanup.attach_interface(op, server.host, f"undo {DETACH}", interface)


async def free(op: DetachInterface) -> dict[str, dict[str, int]] | None:
    """Unbind the port. A port to delete belongs to this operation until then, so that no other server takes it.

    Returns the resources of the port, if it has any.
    """
    interface = (await server_of(op)).find_interface(op.params.port_id)
    if interface is None:
        return None
    resources = await port_resources.allocated(op, interface)
    await interfaces.release_port(op, interface.port_id, "" if interface.given else op.id)
    return resources or None


async def own_again(op: DetachInterface) -> None:
    """Undo `free`. A port that was deleted or taken by another owner stays detached."""
    server = await server_of(op)
    interface = server.find_interface(op.params.port_id)
    if interface is None:
        return
    try:
        await interfaces.take_port(op, op.params.port_id, server.host_name, interface.allocation)
    except Failed:
        async with op.db.transaction() as tx:
            await _remove(op, tx)
            await fence(op, tx)


async def settle(op: DetachInterface, tx: Transaction) -> None:
    removed = await _remove(op, tx)
    if removed is not None and (resources := op.find_result(FREE)):
        await release_part(tx, str(op.server_id), resources)
    if removed is not None and not removed.given:
        await begin(
            tx,
            DeletePort,
            params=DeletePortParams(op.id),
            project_id=op.project_id,
            user_id=op.user_id,
            request_id=op.request_id,
        )


async def delete(op: DeletePort) -> None:
    await interfaces.delete_ports(op, op.params.owner)


async def _remove(op: DetachInterface, tx: Transaction) -> Interface | None:
    """Remove the interface from the server's row. None if another request has detached it."""
    server = await server_of(op, tx)
    removed = server.find_interface(op.params.port_id)
    if removed is not None:
        left = [interface for interface in server.nics if interface.port_id != removed.port_id]
        await model.set_interfaces(tx, server.id, left)
    return removed
