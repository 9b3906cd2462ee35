"""Change a server's ports: add or remove a fixed address or a security group, at the ports and in the server's row."""

from __future__ import annotations

from typing import Any

from kilonova.compute.operations.steps import interfaces, ports
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.network.client import NetworkError
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.operations.definition import Action
from kilonova.store import Transaction

READ, CHANGE = "read ports", "change ports"
SUBNET_FULL = "IpAddressGenerationFailure"
Item = dict[str, Any]


def _steps(read: Action, change: Action, restore: Action, settle: Action) -> tuple[Step, ...]:
    return (
        Step(READ, read, undo=None, why="it changes nothing", deadline=120),
        Step(CHANGE, change, undo=restore, deadline=120),
        transaction_step("settle", settle, "the interfaces"),
    )


class AddFixedIp(Harmless):
    """`params`: `network_id`."""

    kind = "add_fixed_ip"
    action = "addFixedIp"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return _steps(read_port, change_addresses, restore_addresses, settle_addresses)


class RemoveFixedIp(Harmless):
    """`params`: `address`."""

    kind = "remove_fixed_ip"
    action = "removeFixedIp"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return _steps(read_port, change_addresses, restore_addresses, settle_addresses)


class AddSecurityGroup(Harmless):
    """`params`: `group`, the id of the security group, and its `name`."""

    kind = "add_security_group"
    action = "addSecurityGroup"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return _steps(read_groups, change_groups, restore_groups, settle_groups)


class RemoveSecurityGroup(Harmless):
    """`params`: those of AddSecurityGroup."""

    kind = "remove_security_group"
    action = "removeSecurityGroup"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return _steps(read_groups, change_groups, restore_groups, settle_groups)


# Fixed addresses


async def read_port(op: Operation) -> Item:
    """The port to change, with its present addresses."""
    async with interfaces.network_errors():
        found = await ports.list_ports(op, await op.services.identity.token())
    port = next((port for port in found if _is_requested(op, port)), None)
    if port is None:
        raise Failed("The server has no such address, or no interface on that network.")
    return {"id": port["id"], "network_id": port["network_id"], "fixed_ips": _addresses(port)}


async def change_addresses(op: Operation) -> list[str]:
    """The addresses that the port has afterwards."""
    before = op.results[READ]
    token = await op.services.identity.token()
    async with interfaces.network_errors():
        port = await op.services.network.port(before["id"], token)
        if port is None:
            raise Failed(f"Port id {before['id']} could not be found.")
        if _addresses(port) == before["fixed_ips"]:  # else an earlier run has changed them
            port = await _add(op, before, token) if isinstance(op, AddFixedIp) else await _remove(op, before, token)
    return [address["ip_address"] for address in port["fixed_ips"]]


async def restore_addresses(op: Operation) -> None:
    before = op.results[READ]
    await _update(op, before["id"], {"fixed_ips": before["fixed_ips"]})


async def settle_addresses(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    changed = [
        {**nic, "addresses": op.results[CHANGE]} if nic["port_id"] == op.results[READ]["id"] else nic
        for nic in interfaces.interfaces_of(server)
    ]
    await interfaces.write(tx, server, changed)


def _is_requested(op: Operation, port: Item) -> bool:
    if isinstance(op, AddFixedIp):
        return bool(port["network_id"] == op.params["network_id"])
    return any(address["ip_address"] == op.params["address"] for address in port["fixed_ips"])


def _addresses(port: Item) -> list[Item]:
    return [{key: address[key] for key in ("subnet_id", "ip_address")} for address in port["fixed_ips"]]


async def _add(op: Operation, before: Item, token: str) -> Item:
    """Take an address of the first subnet that has one left, IPv4 subnets first."""
    network = await op.services.network.network(before["network_id"], token)
    known = await op.services.network.subnets(network["subnets"] if network else [], token)
    for subnet in sorted(known, key=lambda subnet: int(subnet["ip_version"])):
        wanted = [*before["fixed_ips"], {"subnet_id": subnet["id"]}]
        try:
            changed: Item = await op.services.network.update_port(before["id"], {"fixed_ips": wanted}, token)
            return changed
        except NetworkError as error:
            if error.kind != SUBNET_FULL:
                raise
    raise Failed(f"No more addresses are available on network {before['network_id']}.")


async def _remove(op: Operation, before: Item, token: str) -> Item:
    left = [address for address in before["fixed_ips"] if address["ip_address"] != op.params["address"]]
    changed: Item = await op.services.network.update_port(before["id"], {"fixed_ips": left}, token)
    return changed


# Security groups


async def read_groups(op: Operation) -> dict[str, list[str]]:
    """The present security groups of each port."""
    async with interfaces.network_errors():
        found = await ports.list_ports(op, await op.services.identity.token())
    return {port["id"]: port["security_groups"] for port in found if port.get("port_security_enabled", True)}


async def change_groups(op: Operation) -> None:
    for port_id, groups in op.results[READ].items():
        await _update(op, port_id, {"security_groups": _changed(op, groups, op.params["group"])})


async def restore_groups(op: Operation) -> None:
    for port_id, groups in op.results[READ].items():
        await _update(op, port_id, {"security_groups": groups})


async def settle_groups(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    changed = [
        {**nic, "security_groups": _changed(op, nic["security_groups"], op.params["name"])}
        if nic["port_id"] in op.results[READ]
        else nic
        for nic in interfaces.interfaces_of(server)
    ]
    await interfaces.write(tx, server, changed)


def _changed(op: Operation, groups: list[str], group: str) -> list[str]:
    others = [one for one in groups if one != group]
    return [*others, group] if isinstance(op, AddSecurityGroup) else others


async def _update(op: Operation, port_id: str, changes: Item) -> None:
    """Update a port of the server. A deleted port needs no change."""
    async with interfaces.network_errors():
        try:
            await op.services.network.update_port(port_id, changes, await op.services.identity.token())
        except NetworkError as error:
            if error.kind != "PortNotFound":
                raise
