"""Add a security group to a server, or take one from it: on all its ports, and in its record."""

from __future__ import annotations

from kilonova.compute.operations import nics, ports
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.network.client import NetworkError
from kilonova.operations import Operation, Step
from kilonova.store import Transaction

LOOK = "look at ports"


class AddGroup(Harmless):
    """`params`: `group`, the id of the security group, and its `name`."""

    kind = "addSecurityGroup"
    action = "addSecurityGroup"
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return _steps()


class RemoveGroup(Harmless):
    """`params`: those of AddGroup."""

    kind = "removeSecurityGroup"
    action = "removeSecurityGroup"
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return _steps()


def _steps() -> tuple[Step, ...]:
    return (
        Step(LOOK, look, undo=None, why="it changes nothing", deadline=120),
        Step("change ports", change, undo=change_back, deadline=120),
        Step("settle", settle, undo=None, why="one transaction: the names", deadline=30, transaction=True),
    )


async def look(op: Operation) -> dict[str, list[str]]:
    """The groups that each port has before."""
    async with nics.explained():
        found = await ports.own(op, await op.services.identity.token())
    return {port["id"]: port["security_groups"] for port in found if port.get("port_security_enabled", True)}


async def change(op: Operation) -> None:
    for port_id, groups in op.results[LOOK].items():
        await _set(op, port_id, _changed(op, groups, op.params["group"]))


async def change_back(op: Operation) -> None:
    for port_id, groups in op.results[LOOK].items():
        await _set(op, port_id, groups)


def _changed(op: Operation, groups: list[str], group: str) -> list[str]:
    left = [one for one in groups if one != group]
    return [*left, group] if isinstance(op, AddGroup) else left


async def _set(op: Operation, port_id: str, groups: list[str]) -> None:
    async with nics.explained():
        try:
            token = await op.services.identity.token()
            await op.services.network.update_port(port_id, {"security_groups": groups}, token)
        except NetworkError as error:
            if error.kind != "PortNotFound":
                raise


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    changed = [
        {**nic, "security_groups": _changed(op, nic["security_groups"], op.params["name"])}
        if nic["port_id"] in op.results[LOOK]
        else nic
        for nic in nics.of(server)
    ]
    await nics.write(tx, server, changed)
