"""Attach an interface: create a port or take the user's, bind it to the host, and plug it into the guest."""

from __future__ import annotations

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import call
from kilonova.compute.operations.steps import cleanup, interfaces, plugged
from kilonova.compute.operations.steps.server import Harmless, nic_of, server_of
from kilonova.compute.servers import model, states
from kilonova.compute.servers.requested_networks import RequestedInterface
from kilonova.compute.servers.server import Interface
from kilonova.hosts.messages.verbs import AttachNic
from kilonova.operations import Entry, Failed, Step, StepResult, transaction_step
from kilonova.store import Transaction

MAKE = StepResult("make port", str)
BIND = StepResult("bind port", Interface)
ATTACH = "attach nic"


class AttachInterfaceParams(Struct, frozen=True):
    interface: RequestedInterface


class AttachInterface(Harmless[AttachInterfaceParams]):
    kind = kinds.ATTACH_INTERFACE
    action = "attach_interface"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[AttachInterface], ...]:
        return (
            Step(MAKE, make, undo=unmake, deadline=120),
            Step(BIND, bind, undo=unbind, deadline=120),
            Step(ATTACH, attach, undo=detach, deadline=300),
            plugged.wait_for(expected_ports),
            transaction_step("settle", settle, "the interface"),
        )


async def make(op: AttachInterface) -> str:
    """The port's id. The operation owns a created port until the server does, so that a repeated step finds it."""
    requested = op.params.interface
    return requested.port or await interfaces.make_port(op, requested)


async def unmake(op: AttachInterface) -> None:
    if not op.params.interface.port:
        await interfaces.delete_ports(op, op.id, op.find_result(MAKE))


async def bind(op: AttachInterface) -> Interface:
    """The interface for the server's row."""
    server, port_id = await server_of(op), op.result(MAKE)
    if server.find_interface(port_id) is not None:
        raise Failed(f"Port {port_id} is still in use.")
    port = await interfaces.take_port(op, port_id, server.host_name)
    return await interfaces.interface_of(op, op.params.interface, port)


async def unbind(op: AttachInterface) -> None:
    """Undo `bind`. A created port is deleted."""
    given = op.params.interface.port
    if given and (await server_of(op)).find_interface(given) is None:
        await interfaces.release_port(op, given, "")


async def attach(op: AttachInterface) -> None:
    server = await server_of(op)
    verb = AttachNic(guest_id=server.id, nic=nic_of(op.result(BIND)))
    await call(op, server.host_name, ATTACH, verb)


async def expected_ports(op: AttachInterface) -> plugged.Expected | None:
    server = await server_of(op)
    is_running = server.power_state == states.RUNNING
    return plugged.Expected(server.host_name, [op.result(BIND)]) if is_running else None


async def detach(op: AttachInterface) -> None:
    server = await server_of(op)
    await cleanup.detach_interface(op, server.host_name, f"undo {ATTACH}", op.result(MAKE))


async def settle(op: AttachInterface, tx: Transaction) -> None:
    server = await server_of(op, tx)
    await model.set_interfaces(tx, server.id, [*server.nics, op.result(BIND)])
