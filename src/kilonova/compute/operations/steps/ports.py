"""Steps for a server's ports: create them or bind requested ones, move their bindings, release them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from msgspec import structs

from kilonova.compute.operations.steps.server import server_of
from kilonova.compute.servers.requested_networks import RequestedInterface
from kilonova.compute.servers.server import Interface
from kilonova.network.client import NetworkError, Port, SecurityGroup
from kilonova.operations import Failed, Operation, TransientError

_UNBOUND = {"device_id": "", "device_owner": "", "binding:host_id": ""}


async def create_or_bind(
    op: Operation, host: str, wanted: Sequence[RequestedInterface], security_groups: list[str]
) -> list[Interface]:
    """Create or bind one port per requested interface. Returns the interfaces for the server's row.

    Ports that an earlier run created are deleted and created again.
    """
    if not wanted:
        return []
    network, token = op.services.network, await op.services.identity.token()
    server_id = str(op.server_id)
    owner = {"device_id": server_id, "device_owner": "compute:nova", "binding:host_id": host}
    given = {requested.port for requested in wanted}
    left = [
        port.id for port in await network.ports_of_device(server_id, str(op.project_id), token) if port.id not in given
    ]
    await network.delete_ports(left, token)
    known = []
    if given - {""} or security_groups != ["default"]:
        known = await network.security_groups(str(op.project_id), token)
    groups = _group_ids(op, security_groups, known)
    names = {group.id: group.name for group in known}
    try:
        wanted = [each if each.network_id else await _auto_allocate(op, each, token) for each in wanted]
        new = [_port_attributes(op, requested, owner, groups) for requested in wanted if not requested.port]
        created = iter(await network.create_ports(new, token))
        interfaces = []
        for requested in wanted:
            port = await _bind(op, requested.port, owner, token) if requested.port else next(created)
            shown = [names.get(group_id, group_id) for group_id in port.security_groups] if known else security_groups
            interfaces.append(interface_of(requested, port, shown))
    except NetworkError as error:
        if error.status == 412:
            raise TransientError(str(error)) from error
        # Users read this text, so it must not name the host.
        message = str(error).replace(host, "the host")
        raise Failed(f"Failed to allocate the network(s): {message}", fault=f"{host}: {error}") from error
    return interfaces


async def _auto_allocate(op: Operation, requested: RequestedInterface, token: str) -> RequestedInterface:
    """The interface on the project's auto-allocated network, created now because the server has a host."""
    network = await op.services.network.auto_allocate(str(op.project_id), token)
    return structs.replace(requested, network_id=network.id, label=network.name)


async def _bind(op: Operation, port_id: str, owner: Mapping[str, str], token: str) -> Port:
    """Bind a port that is free or already this server's. The revision number decides between two servers."""
    port = await op.services.network.port(port_id, token)
    if port is None or port.project_id != op.project_id:
        raise Failed(f"Port id {port_id} could not be found.")
    if port.device_id not in ("", op.server_id):
        raise Failed(f"Port {port_id} is still in use.")
    return await op.services.network.update_port(port_id, owner, token, port.revision_number)


async def release(op: Operation, given: Collection[str]) -> None:
    """Delete ports that were created for the server, and unbind `given` ports of the user. Idempotent."""
    network, token = op.services.network, await op.services.identity.token()
    there = await network.ports_of_device(str(op.server_id), str(op.project_id), token)
    await network.delete_ports([port.id for port in there if port.id not in given], token)
    for port in there:
        if port.id in given:
            await _unbind(op, port.id, token)


async def _unbind(op: Operation, port_id: str, token: str) -> None:
    try:
        await op.services.network.update_port(port_id, _UNBOUND, token)
    except NetworkError as error:
        if error.status != 404:
            raise


async def prepare_standby(op: Operation, host: str) -> None:
    """Add an inactive binding to this host to every port, so that the ports can move at once."""
    token = await op.services.identity.token()
    hosts = {host}
    async with _binding_errors(hosts):
        for port in await list_ports(op, token):
            hosts.add(port.binding_host_id or "")
            if port.binding_host_id != host:
                await _create_binding(op, port, host, token)


async def _create_binding(op: Operation, port: Port, host: str, token: str) -> None:
    network, port_id = op.services.network, port.id
    wanted = {"host": host, "vnic_type": port.binding_vnic_type, "profile": port.binding_profile}
    try:
        binding = await network.create_binding(port_id, wanted, token)
    except NetworkError as error:
        if error.status == 404:
            return  # the port is deleted, or the service has no extended bindings
        there = [one for one in await network.bindings(port_id, token) if one.host == host]
        if error.status != 409 or not there:
            raise
        binding = there[0]
    if binding.vif_type == "binding_failed":
        fault = f"{host}: port {port_id}: binding failed"
        raise Failed(f"Port {port_id} cannot be bound to the destination.", fault=fault)


async def drop_standby(op: Operation, host: str) -> None:
    """Undo `prepare_standby`. Ports that are active on the host stay there."""
    token = await op.services.identity.token()
    hosts = {host}
    async with _binding_errors(hosts):
        for port in await list_ports(op, token):
            hosts.add(port.binding_host_id or "")
            if port.binding_host_id != host:
                await op.services.network.delete_binding(port.id, host, token)


async def move(op: Operation, host: str) -> None:
    """Bind every port to this host only, or with an empty host to none. Idempotent."""
    token = await op.services.identity.token()
    hosts = {host}
    async with _binding_errors(hosts):
        for port in await list_ports(op, token):
            bindings = await op.services.network.bindings(port.id, token)
            active = next((one.host for one in bindings if one.status == "ACTIVE"), port.binding_host_id or "")
            others = {one.host for one in bindings} - {active}
            hosts |= {active, *others}
            await _move(op, port.id, active, others, host, token)


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
            # If the port is deleted, the next run skips it.
            raise TransientError(f"port {port_id} has changed just now") from error
        raise


async def list_ports(op: Operation, token: str) -> list[Port]:
    """The ports of the server's interfaces, without those that users have deleted or rebound."""
    interfaces = (await server_of(op)).nics
    if not interfaces:
        return []
    there = {
        port.id: port
        for port in await op.services.network.ports_of_device(str(op.server_id), str(op.project_id), token)
    }
    return [there[interface.port_id] for interface in interfaces if interface.port_id in there]


@asynccontextmanager
async def _binding_errors(hosts: set[str]) -> AsyncIterator[None]:
    """Turn errors of the network service into Failed, without names of hosts for users."""
    try:
        yield
    except NetworkError as error:
        if error.status in (409, 412):
            raise TransientError(str(error)) from error
        message = str(error)
        for host in sorted(hosts - {""}, key=len, reverse=True):
            message = message.replace(host, "the host")
        raise Failed(f"The network ports could not be bound: {message}", fault=str(error)) from error


def _group_ids(op: Operation, names: list[str], known: Sequence[SecurityGroup]) -> list[str]:
    """The ids of the project's security groups with these names or ids."""
    if names == ["default"]:
        return []  # the network service adds it by default
    ids = {group.name: group.id for group in known} | {group.id: group.id for group in known}
    for name in names:
        if name not in ids:
            raise Failed(f"Security group {name} not found for project {op.project_id}.")
    return [ids[name] for name in names]


def _port_attributes(
    op: Operation, requested: RequestedInterface, owner: Mapping[str, str], groups: list[str]
) -> dict[str, object]:
    port: dict[str, object] = {"network_id": requested.network_id, "project_id": op.project_id, **owner}
    if requested.fixed_ip:
        port["fixed_ips"] = [{"ip_address": requested.fixed_ip}]
    if groups:
        port["security_groups"] = groups
    return port


def interface_of(requested: RequestedInterface, port: Port, security_groups: list[str]) -> Interface:
    """The interface for the server's row."""
    return Interface(
        port_id=port.id,
        network_id=port.network_id,
        label=requested.label,
        mac=port.mac_address,
        addresses=[fixed.ip_address for fixed in port.fixed_ips],
        security_groups=security_groups,
        tag=requested.tag,
        given=bool(requested.port),
    )
