"""Steps for the port of a single interface of a server."""

from __future__ import annotations

from kilonova.compute.operations.steps import port_attributes, port_resources, ports
from kilonova.compute.operations.steps.network_errors import network_errors, refusal
from kilonova.compute.operations.steps.server import server_of
from kilonova.compute.servers import interface_cache
from kilonova.compute.servers.requested_networks import RequestedInterface
from kilonova.compute.servers.server import Interface
from kilonova.network.client import NetworkError, Port
from kilonova.operations import Failed, Operation

OWNER = port_attributes.OWNER


async def make_port(op: Operation, requested: RequestedInterface) -> str:
    """Create a port owned by the operation, or find the one of an earlier run. Returns its id."""
    network, token = op.services.network, await op.services.identity.token()
    async with network_errors():
        expected = 0 if op.is_first_try else 1
        if there := await network.ports_of_device(op.id, str(op.project_id), token, expected=expected):
            return there[0].id
        port: dict[str, object] = {"network_id": requested.network_id, "project_id": op.project_id}
        port |= {"device_id": op.id, "device_owner": OWNER}
        if requested.fixed_ip:
            port["fixed_ips"] = [{"ip_address": requested.fixed_ip}]
        return (await network.create_port(port, token)).id


async def take_port(op: Operation, port_id: str, host: str, allocation: object = None) -> Port:
    """Give the port to the server and bind it to the host. The revision number decides between two servers.

    `allocation` is that of the port's resources, if the server holds them.
    """
    network, token = op.services.network, await op.services.identity.token()
    async with network_errors():
        port = await network.port(port_id, token)
        if port is None or port.project_id != op.project_id:
            raise Failed(f"Port id {port_id} could not be found.", fault=refusal(404, "PortNotFound", port_id))
        if port.device_id not in ("", op.id, op.server_id):
            raise Failed(f"Port {port_id} is still in use.", fault=refusal(409, "PortInUse", port_id))
        if allocation is None:
            port_resources.check_none(port)
        owner: dict[str, object] = {"device_id": op.server_id, "binding:host_id": host}
        owner["device_owner"] = await port_attributes.device_owner(op, host)
        owner |= port_attributes.dns_changes(port, await port_attributes.dns_name(op, token))
        owner |= port_attributes.profile_changes(port, allocation) if allocation is not None else {}
        bound = await network.update_port(port_id, owner, token, port.revision_number)
    port_attributes.check_bound(bound, host)
    return bound


async def release_port(op: Operation, port_id: str, owner: str) -> None:
    """Give the server's port to another owner, or unbind it. Ignores a deleted port and one of another owner."""
    network, token = op.services.network, await op.services.identity.token()
    async with network_errors():
        port = await network.port(port_id, token)
        if port is None or port.device_id != op.server_id:
            return None
        if not owner:
            hostname = (await server_of(op)).hostname if port.dns_name else ""
            return await ports.unbind(op, port, hostname, token, port.revision_number)
        changes = {"device_id": owner, "device_owner": OWNER, "binding:host_id": ""}
        try:
            await network.update_port(port_id, changes, token, port.revision_number)
        except NetworkError as error:
            if error.status != 404:
                raise


async def delete_ports(op: Operation, owner: str, port_id: str | None = None) -> None:
    """Delete the project's ports of the owner, and this port if it is the server's. Idempotent."""
    network, token = op.services.network, await op.services.identity.token()
    async with network_errors():
        found = await network.ports_of_device(owner, str(op.project_id), token)
        port = await network.port(port_id, token) if port_id else None
        if port is not None and port.device_id == op.server_id:
            found.append(port)
        await network.delete_ports([port.id for port in found], token)


async def interface_of(op: Operation, requested: RequestedInterface, port: Port) -> Interface:
    """The interface for the server's row, with the names of its security groups."""
    network, token = op.services.network, await op.services.identity.token()
    async with network_errors():
        if not network.built_in:
            described = [ports.interface_of(requested, port, [])]
            return (await interface_cache.describe(network, token, described, {port.id: port}))[0]
        known = await network.security_groups(port.project_id, token)
    names = {group.id: group.name for group in known}
    return ports.interface_of(requested, port, [names.get(group_id, group_id) for group_id in port.security_groups])
