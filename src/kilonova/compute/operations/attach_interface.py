"""Attach an interface: create a port or take the user's, bind it to the host, and plug it into the guest."""

from __future__ import annotations

from typing import Any

from kilonova.compute.operations.steps import cleanup, hosts, interfaces
from kilonova.compute.operations.steps.server import Harmless, nic_of, server_of
from kilonova.hosts.messages.verbs import AttachNic
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.store import Transaction

MAKE, BIND, ATTACH = "make port", "bind port", "attach nic"


class AttachInterface(Harmless):
    """`params`: `interface`, an entry like those of `networks` of a boot."""

    kind = "attach_interface"
    action = "attach_interface"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(MAKE, make, undo=unmake, deadline=120),
            Step(BIND, bind, undo=unbind, deadline=120),
            Step(ATTACH, attach, undo=detach, deadline=300),
            transaction_step("settle", settle, "the interface"),
        )


async def make(op: Operation) -> str:
    """The port's id. The operation owns a created port until the server does, so that a repeated step finds it."""
    requested = op.params["interface"]
    return str(requested["port"] or await interfaces.make_port(op, requested))


async def unmake(op: Operation) -> None:
    if not op.params["interface"]["port"]:
        await interfaces.delete_ports(op, op.id, op.results.get(MAKE))


async def bind(op: Operation) -> dict[str, Any]:
    """The interface's record for the server's row."""
    server, port_id = await server_of(op), op.results[MAKE]
    if any(nic["port_id"] == port_id for nic in interfaces.interfaces_of(server)):
        raise Failed(f"Port {port_id} is still in use.")
    port = await interfaces.take_port(op, port_id, server["host"])
    return await interfaces.interface_record(op, op.params["interface"], port)


async def unbind(op: Operation) -> None:
    """Undo `bind`. A created port is deleted."""
    given = op.params["interface"]["port"]
    if given and all(nic["port_id"] != given for nic in interfaces.interfaces_of(await server_of(op))):
        await interfaces.release_port(op, given, "")


async def attach(op: Operation) -> None:
    server = await server_of(op)
    verb = AttachNic(guest_id=server["id"], nic=nic_of(op.results[BIND]))
    await hosts.call_or_fail(op, server["host"], ATTACH, verb)


async def detach(op: Operation) -> None:
    server = await server_of(op)
    await cleanup.detach_interface(op, server["host"], f"undo {ATTACH}", op.results[MAKE])


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    await interfaces.write(tx, server, [*interfaces.interfaces_of(server), op.results[BIND]])
