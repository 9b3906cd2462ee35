"""A server's interfaces, one at a time: their ports at the network service, and the record of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import orjson

from kilonova import clock
from kilonova.compute.operations import ports
from kilonova.network.client import NetworkError
from kilonova.operations import Failed, Operation, Passing
from kilonova.store import Row, Transaction

Item = dict[str, Any]
OWNER = "compute:nova"


def of(server: Row) -> list[Item]:
    found: list[Item] = orjson.loads(server["nics"])
    return found


def find(server: Row, port_id: str) -> Item | None:
    return next((nic for nic in of(server) if nic["port_id"] == port_id), None)


async def write(tx: Transaction, server: Row, nics: Collection[Item]) -> None:
    """The interfaces that the server has from now on; an old fault is over."""
    await tx.execute(
        "UPDATE servers SET nics = $2, fault = NULL, updated_at = $3 WHERE id = $1",
        server["id"],
        orjson.dumps(nics).decode(),
        clock.now(),
    )


async def make_port(op: Operation, asked: Item) -> str:
    """A port of the operation's own; one that an earlier run has made will do."""
    network, token = op.services.network, await op.services.identity.token()
    async with explained():
        if there := await network.ports_of(op.id, token):
            return str(there[0]["id"])
        port: Item = {"network_id": asked["network_id"], "project_id": op.project_id}
        port |= {"device_id": op.id, "device_owner": OWNER}
        if asked["fixed_ip"]:
            port["fixed_ips"] = [{"ip_address": asked["fixed_ip"]}]
        return str((await network.create_port(port, token))["id"])


async def own(op: Operation, port_id: str, host: str) -> Item:
    """Have the port the server's, bound to its host. Of two servers that want it, only one gets it."""
    network, token = op.services.network, await op.services.identity.token()
    async with explained():
        port = await network.port(port_id, token)
        if port is None:
            raise Failed(f"Port id {port_id} could not be found.", fault=_said(404, "PortNotFound", port_id))
        if port["device_id"] not in ("", op.id, op.server_id):
            raise Failed(f"Port {port_id} is still in use.", fault=_said(409, "PortInUse", port_id))
        owner = {"device_id": op.server_id, "device_owner": OWNER, "binding:host_id": host}
        bound: Item = await network.update_port(port_id, owner, token, port.get("revision_number"))
    if bound.get("binding:vif_type") == "binding_failed":
        raise Failed(f"Port {port_id} cannot be bound to the host.", fault=f"{host}: port {port_id}: binding failed")
    return bound


async def set_free(op: Operation, port_id: str, owner: str) -> None:
    """Have the port somebody else's, or nobody's. One that the server has not, or that is gone, is fine."""
    network, token = op.services.network, await op.services.identity.token()
    async with explained():
        port = await network.port(port_id, token)
        if port is None or port["device_id"] != op.server_id:
            return
        changes = {"device_id": owner, "device_owner": OWNER if owner else "", "binding:host_id": ""}
        try:
            await network.update_port(port_id, changes, token, port.get("revision_number"))
        except NetworkError as error:
            if error.status != 404:
                raise


async def delete_ports(op: Operation, owner: str, port_id: str | None = None) -> None:
    """Delete the ports of the owner, and this one if the operation's server has it. Gone already is fine."""
    network, token = op.services.network, await op.services.identity.token()
    async with explained():
        found = await network.ports_of(owner, token)
        port = await network.port(port_id, token) if port_id else None
        if port is not None and port["device_id"] == op.server_id:
            found.append(port)
        await network.delete_ports([port["id"] for port in found], token)


async def kept(op: Operation, asked: Item, port: Item) -> Item:
    """The interface as the server's row keeps it, with the names of its security groups."""
    token = await op.services.identity.token()
    async with explained():
        known = await op.services.network.security_groups(port["project_id"], token)
    names = {group["id"]: group["name"] for group in known}
    return ports.nic(asked, port, [names.get(group_id, group_id) for group_id in port["security_groups"]])


def _said(status: int, kind: str, words: str) -> str:
    """For administrators, and for whoever waits for the operation to tell what kind of refusal it was."""
    return f"the network service answered {status} {kind}: {words}"


@asynccontextmanager
async def explained() -> AsyncIterator[None]:
    """What the network service refuses, in its words."""
    try:
        yield
    except NetworkError as error:
        if error.status == 412:
            raise Passing(str(error)) from error
        raise Failed(str(error), fault=_said(error.status, error.kind, str(error))) from error
