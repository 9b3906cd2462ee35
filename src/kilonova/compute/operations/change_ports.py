"""Change a server's ports: add or remove a fixed address or a security group, at the ports and in the server's row."""

from __future__ import annotations

from msgspec import Struct, structs

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.operations.steps import ports
from kilonova.compute.operations.steps.network_errors import network_errors
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import model
from kilonova.network.client import Attributes, FixedIp, NetworkError, Port
from kilonova.operations import Entry, Failed, Operation, Step, StepResult, transaction_step
from kilonova.store import Transaction

SUBNET_FULL = "IpAddressGenerationFailure"


class PortBefore(Struct, frozen=True):
    """The port to change, with its present addresses."""

    id: str
    network_id: str
    fixed_ips: list[FixedIp]


READ_PORT = StepResult("read ports", PortBefore)
CHANGE_ADDRESSES = StepResult("change ports", list[str])
# The security groups of each port before the change.
READ_GROUPS = StepResult("read ports", dict[str, list[str]])


class AddFixedIpParams(Struct, frozen=True):
    network_id: str


class RemoveFixedIpParams(Struct, frozen=True):
    address: str


class GroupParams(Struct, frozen=True):
    """`group` is the id of the security group."""

    group: str
    name: str


class AddFixedIp(Harmless[AddFixedIpParams]):
    kind = kinds.ADD_FIXED_IP
    action = "addFixedIp"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[AddFixedIp], ...]:
        return _address_steps()


class RemoveFixedIp(Harmless[RemoveFixedIpParams]):
    kind = kinds.REMOVE_FIXED_IP
    action = "removeFixedIp"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[RemoveFixedIp], ...]:
        return _address_steps()


class AddSecurityGroup(Harmless[GroupParams]):
    kind = kinds.ADD_SECURITY_GROUP
    action = "addSecurityGroup"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[AddSecurityGroup], ...]:
        return _group_steps()


class RemoveSecurityGroup(Harmless[GroupParams]):
    kind = kinds.REMOVE_SECURITY_GROUP
    action = "removeSecurityGroup"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[RemoveSecurityGroup], ...]:
        return _group_steps()


ChangeAddresses = AddFixedIp | RemoveFixedIp
ChangeGroups = AddSecurityGroup | RemoveSecurityGroup


# Fixed addresses


def _address_steps() -> tuple[Entry[ChangeAddresses], ...]:
    return (
        Step(READ_PORT, read_port, undo=None, why="it changes nothing", deadline=120),
        Step(CHANGE_ADDRESSES, change_addresses, undo=restore_addresses, deadline=120),
        transaction_step("settle", settle_addresses, "the interfaces"),
    )


async def read_port(op: ChangeAddresses) -> PortBefore:
    async with network_errors():
        found = await ports.list_ports(op, await op.services.identity.token())
    port = next((port for port in found if _is_requested(op, port)), None)
    if port is None:
        raise Failed("The server has no such address, or no interface on that network.")
    return PortBefore(port.id, port.network_id, port.fixed_ips)


async def change_addresses(op: ChangeAddresses) -> list[str]:
    """The addresses that the port has afterwards."""
    before = op.result(READ_PORT)
    token = await op.services.identity.token()
    async with network_errors():
        port = await op.services.network.port(before.id, token)
        if port is None:
            raise Failed(f"Port id {before.id} could not be found.")
        if port.fixed_ips == before.fixed_ips:  # else an earlier run has changed them
            port = await _add(op, before, token) if isinstance(op, AddFixedIp) else await _remove(op, before, token)
    return [fixed.ip_address for fixed in port.fixed_ips]


async def restore_addresses(op: ChangeAddresses) -> None:
    before = op.result(READ_PORT)
    await _update(op, before.id, {"fixed_ips": [structs.asdict(fixed) for fixed in before.fixed_ips]})


async def settle_addresses(op: ChangeAddresses, tx: Transaction) -> None:
    server = await server_of(op, tx)
    port_id, addresses = op.result(READ_PORT).id, op.result(CHANGE_ADDRESSES)
    changed = [
        structs.replace(interface, addresses=addresses) if interface.port_id == port_id else interface
        for interface in server.nics
    ]
    await model.set_interfaces(tx, server.id, changed)


def _is_requested(op: ChangeAddresses, port: Port) -> bool:
    if isinstance(op, AddFixedIp):
        return port.network_id == op.params.network_id
    return any(fixed.ip_address == op.params.address for fixed in port.fixed_ips)


async def _add(op: AddFixedIp, before: PortBefore, token: str) -> Port:
    """Take an address of the first subnet that has one left, IPv4 subnets first."""
    network = await op.services.network.network(before.network_id, token)
    known = await op.services.network.subnets(network.subnets if network else [], token)
    for subnet in sorted(known, key=lambda subnet: subnet.ip_version):
        wanted = [*(structs.asdict(fixed) for fixed in before.fixed_ips), {"subnet_id": subnet.id}]
        try:
            return await op.services.network.update_port(before.id, {"fixed_ips": wanted}, token)
        except NetworkError as error:
            if error.kind != SUBNET_FULL:
                raise
    raise Failed(f"No more addresses are available on network {before.network_id}.")


async def _remove(op: RemoveFixedIp, before: PortBefore, token: str) -> Port:
    left = [structs.asdict(fixed) for fixed in before.fixed_ips if fixed.ip_address != op.params.address]
    return await op.services.network.update_port(before.id, {"fixed_ips": left}, token)


# Security groups


def _group_steps() -> tuple[Entry[ChangeGroups], ...]:
    return (
        Step(READ_GROUPS, read_groups, undo=None, why="it changes nothing", deadline=120),
        Step("change ports", change_groups, undo=restore_groups, deadline=120),
        transaction_step("settle", settle_groups, "the interfaces"),
    )


async def read_groups(op: ChangeGroups) -> dict[str, list[str]]:
    """The present security groups of each port."""
    async with network_errors():
        found = await ports.list_ports(op, await op.services.identity.token())
    return {port.id: port.security_groups for port in found if port.port_security_enabled}


async def change_groups(op: ChangeGroups) -> None:
    for port_id, groups in op.result(READ_GROUPS).items():
        await _update(op, port_id, {"security_groups": _changed(op, groups, op.params.group)})


async def restore_groups(op: ChangeGroups) -> None:
    for port_id, groups in op.result(READ_GROUPS).items():
        await _update(op, port_id, {"security_groups": groups})


async def settle_groups(op: ChangeGroups, tx: Transaction) -> None:
    server, changed_ports = await server_of(op, tx), op.result(READ_GROUPS)
    changed = [
        structs.replace(interface, security_groups=_changed(op, interface.security_groups, op.params.name))
        if interface.port_id in changed_ports
        else interface
        for interface in server.nics
    ]
    await model.set_interfaces(tx, server.id, changed)


def _changed(op: ChangeGroups, groups: list[str], group: str) -> list[str]:
    others = [one for one in groups if one != group]
    return [*others, group] if isinstance(op, AddSecurityGroup) else others


async def _update(op: Operation, port_id: str, changes: Attributes) -> None:
    """Update a port of the server. A deleted port needs no change."""
    async with network_errors():
        try:
            await op.services.network.update_port(port_id, changes, await op.services.identity.token())
        except NetworkError as error:
            if error.kind != "PortNotFound":
                raise
