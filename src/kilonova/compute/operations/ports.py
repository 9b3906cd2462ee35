"""A server's ports: made for it or given by the user, bound to its host, and taken away again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import orjson

from kilonova.compute.operations.common import server_of
from kilonova.network.client import NetworkError
from kilonova.operations import Failed, Operation, Passing

_GONE = {"device_id": "", "device_owner": "", "binding:host_id": ""}


async def make(
    op: Operation, host: str, wanted: list[dict[str, Any]], security_groups: list[str]
) -> list[dict[str, Any]]:
    """One port per wanted interface, as the server's row keeps it. What an earlier run left is made anew."""
    if not wanted:
        return []
    network, token = op.services.network, await op.services.identity.token()
    server_id = str(op.server_id)
    owner = {"device_id": server_id, "device_owner": "compute:nova", "binding:host_id": host}
    given = {entry["port"] for entry in wanted}
    left = [port["id"] for port in await network.ports_of(server_id, token) if port["id"] not in given]
    await network.delete_ports(left, token)
    groups = await _groups(op, security_groups, token)
    try:
        wanted = [entry if entry["network_id"] else await _allocated(op, entry, token) for entry in wanted]
        new = [entry for entry in wanted if not entry["port"]]
        created = iter(await network.create_ports([_request(op, entry, owner, groups) for entry in new], token))
        rows = []
        for entry in wanted:
            port = await _bind(op, entry["port"], owner, token) if entry["port"] else next(created)
            rows.append(nic(entry, port, security_groups))
    except NetworkError as error:
        if error.status == 412:
            raise Passing(str(error)) from error
        # The network service answers whoever may bind ports, and users read it.
        said = str(error).replace(host, "the host")
        raise Failed(f"Failed to allocate the network(s): {said}", fault=f"{host}: {error}") from error
    return rows


async def _allocated(op: Operation, entry: dict[str, Any], token: str) -> dict[str, Any]:
    """The entry with the project's automatic network, which is made only now that the server is sure to be built."""
    made = await op.services.network.auto_allocate(str(op.project_id), token)
    return {**entry, "network_id": made["id"], "label": made["name"]}


async def _bind(op: Operation, port_id: str, owner: dict[str, str], token: str) -> dict[str, Any]:
    """A port that nobody has, or this server already. Of two servers that want it, only one gets it."""
    port = await op.services.network.port(port_id, token)
    if port is None:
        raise Failed(f"Port id {port_id} could not be found.")
    if port["device_id"] not in ("", op.server_id):
        raise Failed(f"Port {port_id} is still in use.")
    bound: dict[str, Any] = await op.services.network.update_port(port_id, owner, token, port.get("revision_number"))
    return bound


async def drop(op: Operation, given: Collection[str]) -> None:
    """Delete what was made for the server, set free what the user had given. Ports already gone are fine."""
    network, token = op.services.network, await op.services.identity.token()
    there = await network.ports_of(str(op.server_id), token)
    await network.delete_ports([port["id"] for port in there if port["id"] not in given], token)
    for port in there:
        if port["id"] in given:
            await _set_free(op, port["id"], token)


async def _set_free(op: Operation, port_id: str, token: str) -> None:
    try:
        await op.services.network.update_port(port_id, _GONE, token)
    except NetworkError as error:
        if error.status != 404:
            raise


async def standby(op: Operation, host: str) -> None:
    """Have every port bound to the host beside where it is, so that it can move there at once."""
    token = await op.services.identity.token()
    hosts = {host}
    async with _explained(hosts):
        for port in await own(op, token):
            hosts.add(port["binding:host_id"])
            if port["binding:host_id"] != host:
                await _stand_by(op, port, host, token)


async def _stand_by(op: Operation, port: dict[str, Any], host: str, token: str) -> None:
    network, port_id = op.services.network, port["id"]
    wanted = {"host": host, "vnic_type": port["binding:vnic_type"], "profile": port["binding:profile"]}
    try:
        made = await network.create_binding(port_id, wanted, token)
    except NetworkError as error:
        if error.status == 404:
            return  # the port is gone, or the service knows but one binding: then there is nothing to prepare
        there = [one for one in await network.bindings(port_id, token) if one["host"] == host]
        if error.status != 409 or not there:
            raise
        made = there[0]
    if made["vif_type"] == "binding_failed":
        raise Failed(f"Port {port_id} cannot be bound to the destination.", fault=f"{host}: port {port_id}: {made}")


async def unstandby(op: Operation, host: str) -> None:
    """Take back what `standby` did; ports that are on the host stay there."""
    token = await op.services.identity.token()
    hosts = {host}
    async with _explained(hosts):
        for port in await own(op, token):
            hosts.add(port["binding:host_id"])
            if port["binding:host_id"] != host:
                await op.services.network.delete_binding(port["id"], host, token)


async def move(op: Operation, host: str) -> None:
    """Have every port bound to the host and nowhere else, or nowhere at all. Done before, or half done, is fine."""
    token = await op.services.identity.token()
    hosts = {host}
    async with _explained(hosts):
        for port in await own(op, token):
            bindings = await op.services.network.bindings(port["id"], token)
            active = next((one["host"] for one in bindings if one["status"] == "ACTIVE"), port["binding:host_id"])
            others = {one["host"] for one in bindings} - {active}
            hosts |= {active, *others}
            await _move(op, port["id"], active, others, host, token)


async def _move(op: Operation, port_id: str, active: str, others: set[str], host: str, token: str) -> None:
    network = op.services.network
    try:
        if host in others:
            await network.activate_binding(port_id, host, token)
            others = {*others, active}
        elif host != active:
            await network.update_port(port_id, {"binding:host_id": host}, token)
        for other in sorted(others - {host, ""}):
            await network.delete_binding(port_id, other, token)
    except NetworkError as error:
        if error.status == 404:
            raise Passing(f"port {port_id} has changed just now") from error  # or is gone, then it is skipped next
        raise


async def own(op: Operation, token: str) -> list[dict[str, Any]]:
    """The server's interfaces that are still its own: ports can be deleted or given to others behind our back."""
    nics = [nic["port_id"] for nic in orjson.loads((await server_of(op))["nics"])]
    if not nics:
        return []
    there = {port["id"]: port for port in await op.services.network.ports_of(str(op.server_id), token)}
    return [there[port_id] for port_id in nics if port_id in there]


@asynccontextmanager
async def _explained(hosts: set[str]) -> AsyncIterator[None]:
    """What the network service says, to users without the hosts it names."""
    try:
        yield
    except NetworkError as error:
        if error.status in (409, 412):
            raise Passing(str(error)) from error
        said = str(error)
        for host in sorted(hosts - {""}, key=len, reverse=True):
            said = said.replace(host, "the host")
        raise Failed(f"The network ports could not be bound: {said}", fault=str(error)) from error


async def _groups(op: Operation, names: list[str], token: str) -> list[str]:
    """Ids of the project's groups of these names; ids may be given as names."""
    if names == ["default"]:
        return []  # what the network service gives a port by itself
    known = await op.services.network.security_groups(str(op.project_id), token)
    ids = {group["name"]: group["id"] for group in known} | {group["id"]: group["id"] for group in known}
    for name in names:
        if name not in ids:
            raise Failed(f"Security group {name} not found for project {op.project_id}.")
    return [ids[name] for name in names]


def _request(op: Operation, entry: dict[str, Any], owner: dict[str, str], groups: list[str]) -> dict[str, Any]:
    port: dict[str, Any] = {"network_id": entry["network_id"], "project_id": op.project_id, **owner}
    if entry["fixed_ip"]:
        port["fixed_ips"] = [{"ip_address": entry["fixed_ip"]}]
    if groups:
        port["security_groups"] = groups
    return port


def nic(entry: dict[str, Any], port: dict[str, Any], security_groups: list[str]) -> dict[str, Any]:
    """The interface as the server's row keeps it."""
    return {
        "port_id": port["id"],
        "network_id": port["network_id"],
        "label": entry["label"],
        "mac": port["mac_address"],
        "addresses": [address["ip_address"] for address in port["fixed_ips"]],
        "security_groups": security_groups,
        "tag": entry["tag"],
        "given": bool(entry["port"]),
    }
