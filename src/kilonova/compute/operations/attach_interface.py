"""Attach an interface: a port is made, or the user's own taken; bound to the server's host; and given to its guest."""

from __future__ import annotations

from typing import Any

from kilonova.compute.operations import left_nics, nics, silence
from kilonova.compute.operations.common import Harmless, nic_of, server_of
from kilonova.hosts.messages import AttachNic
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction

MAKE, BIND, ATTACH = "make port", "bind port", "attach nic"


class AttachInterface(Harmless):
    """`params`: `interface`, of the form in which a boot has its networks."""

    kind = "attach_interface"
    action = "attach_interface"
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(MAKE, make, undo=unmake, deadline=120),
            Step(BIND, bind, undo=unbind, deadline=120),
            Step(ATTACH, attach, undo=detach, deadline=300),
            Step("settle", settle, undo=None, why="one transaction: the interface", deadline=30, transaction=True),
        )


async def make(op: Operation) -> str:
    """The port's id. Until the server has it, a port that was made belongs to this operation, by which it is found."""
    asked = op.params["interface"]
    return str(asked["port"] or await nics.make_port(op, asked))


async def unmake(op: Operation) -> None:
    if not op.params["interface"]["port"]:
        await nics.delete_ports(op, op.id, op.results.get(MAKE))


async def bind(op: Operation) -> dict[str, Any]:
    """The interface, as the server's row keeps it."""
    server, port_id = await server_of(op), op.results[MAKE]
    if any(nic["port_id"] == port_id for nic in nics.of(server)):
        raise Failed(f"Port {port_id} is still in use.")
    port = await nics.own(op, port_id, server["host"])
    return await nics.kept(op, op.params["interface"], port)


async def unbind(op: Operation) -> None:
    """A port that was made goes altogether."""
    given = op.params["interface"]["port"]
    if given and all(nic["port_id"] != given for nic in nics.of(await server_of(op))):
        await nics.set_free(op, given, "")


async def attach(op: Operation) -> None:
    server = await server_of(op)
    verb = AttachNic(guest_id=server["id"], nic=nic_of(op.results[BIND]))
    await silence.demand(op, server["host"], ATTACH, verb)


async def detach(op: Operation) -> None:
    server = await server_of(op)
    await left_nics.take(op, server["host"], f"undo {ATTACH}", op.results[MAKE])


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    await nics.write(tx, server, [*nics.of(server), op.results[BIND]])
