"""Give an interface of a server one more address, or take one from it: at its port, and in the server's record."""

from __future__ import annotations

from typing import Any

from kilonova.compute.operations import nics, ports
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.network.client import NetworkError
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction

LOOK, CHANGE = "look at port", "change port"
FULL = "IpAddressGenerationFailure"
Item = dict[str, Any]


class AddAddress(Harmless):
    """`params`: `network_id`."""

    kind = "addFixedIp"
    action = "addFixedIp"
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return _steps()


class RemoveAddress(Harmless):
    """`params`: `address`."""

    kind = "removeFixedIp"
    action = "removeFixedIp"
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return _steps()


def _steps() -> tuple[Step, ...]:
    return (
        Step(LOOK, look, undo=None, why="it changes nothing", deadline=120),
        Step(CHANGE, change, undo=change_back, deadline=120),
        Step("settle", settle, undo=None, why="one transaction: the addresses", deadline=30, transaction=True),
    )


async def look(op: Operation) -> Item:
    """The port in question, and the addresses that it has before."""
    async with nics.explained():
        found = await ports.own(op, await op.services.identity.token())
    port = next((port for port in found if _is_meant(op, port)), None)
    if port is None:
        raise Failed("The server has no such address, or no interface on that network.")
    return {"id": port["id"], "network_id": port["network_id"], "fixed_ips": _addresses(port)}


async def change(op: Operation) -> list[str]:
    """The addresses that the port has from now on."""
    before = op.results[LOOK]
    token = await op.services.identity.token()
    async with nics.explained():
        port = await op.services.network.port(before["id"], token)
        if port is None:
            raise Failed(f"Port id {before['id']} could not be found.")
        if _addresses(port) == before["fixed_ips"]:  # else an earlier run has done it
            port = await _add(op, before, token) if isinstance(op, AddAddress) else await _remove(op, before, token)
    return [address["ip_address"] for address in port["fixed_ips"]]


async def change_back(op: Operation) -> None:
    before = op.results[LOOK]
    async with nics.explained():
        try:
            token = await op.services.identity.token()
            await op.services.network.update_port(before["id"], {"fixed_ips": before["fixed_ips"]}, token)
        except NetworkError as error:
            if error.kind != "PortNotFound":
                raise


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    changed = [
        {**nic, "addresses": op.results[CHANGE]} if nic["port_id"] == op.results[LOOK]["id"] else nic
        for nic in nics.of(server)
    ]
    await nics.write(tx, server, changed)


def _is_meant(op: Operation, port: Item) -> bool:
    if isinstance(op, AddAddress):
        return bool(port["network_id"] == op.params["network_id"])
    return any(address["ip_address"] == op.params["address"] for address in port["fixed_ips"])


def _addresses(port: Item) -> list[Item]:
    return [{key: address[key] for key in ("subnet_id", "ip_address")} for address in port["fixed_ips"]]


async def _add(op: Operation, before: Item, token: str) -> Item:
    """From the first of the network's subnets that has one left, those of IPv4 before the others."""
    network = await op.services.network.network(before["network_id"], token)
    known = await op.services.network.subnets(network["subnets"] if network else [], token)
    for subnet in sorted(known, key=lambda subnet: int(subnet["ip_version"])):
        wanted = [*before["fixed_ips"], {"subnet_id": subnet["id"]}]
        try:
            changed: Item = await op.services.network.update_port(before["id"], {"fixed_ips": wanted}, token)
            return changed
        except NetworkError as error:
            if error.kind != FULL:
                raise
    raise Failed(f"No more addresses are available on network {before['network_id']}.")


async def _remove(op: Operation, before: Item, token: str) -> Item:
    left = [address for address in before["fixed_ips"] if address["ip_address"] != op.params["address"]]
    changed: Item = await op.services.network.update_port(before["id"], {"fixed_ips": left}, token)
    return changed
