"""Steps for a server's ports: create them or bind requested ones, move their bindings, release them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from msgspec import structs

from kilonova.compute.host_calls import HostCallFailed
from kilonova.compute.operations.steps import port_attributes, port_resources
from kilonova.compute.operations.steps.choose import CLAIM
from kilonova.compute.operations.steps.port_attributes import AllocationOf
from kilonova.compute.operations.steps.server import fence, server_of
from kilonova.compute.servers import interface_cache, model
from kilonova.compute.servers.requested_networks import RequestedInterface
from kilonova.compute.servers.server import Interface
from kilonova.network.client import (
    BINDING_FAILED,
    PORT_BINDING_ERROR,
    Attributes,
    Binding,
    NetworkClient,
    NetworkError,
    Port,
    SecurityGroup,
)
from kilonova.operations import Failed, Operation, TransientError

log = logging.getLogger(__name__)


async def create_or_bind(
    op: Operation, host: str, wanted: Sequence[RequestedInterface], security_groups: list[str]
) -> list[Interface]:
    """Create or bind one port per requested interface. Returns the interfaces for the server's row.

    Ports that an earlier run created are deleted and created again. Raises HostCallFailed if the network service cannot
    bind a port to the host.
    """
    if not wanted:
        return []
    network, token = op.services.network, await op.services.identity.token()
    server_id = str(op.server_id)
    owner: dict[str, object] = {"device_id": server_id, "binding:host_id": host}
    owner["device_owner"] = await port_attributes.device_owner(op, host)
    dns_name = await port_attributes.dns_name(op, token)
    given = {requested.port for requested in wanted}
    expected = 0 if op.is_first_try else 1
    found = await network.ports_of_device(server_id, str(op.project_id), token, expected=expected)
    await network.delete_ports([port.id for port in found if port.id not in given], token)
    known = []
    if given - {None} or security_groups != ["default"]:
        known = await network.security_groups(str(op.project_id), token)
    groups = _group_ids(op, security_groups, known)
    names = {group.id: group.name for group in known}
    try:
        wanted = [each if each.network_id else await _auto_allocate(op, each, token) for each in wanted]
        attributes = {**owner, "dns_name": dns_name} if dns_name else owner
        secured = await _secured_networks(network, wanted, token) if groups else frozenset()
        new = [
            _port_attributes(op, requested, attributes, groups if requested.network_id in secured else [])
            for requested in wanted
            if not requested.port
        ]
        created = iter(await network.create_ports(new, token))
        interfaces, ports = [], {}
        for requested in wanted:
            port = await _bind(op, requested.port, owner, dns_name, token) if requested.port else next(created)
            port_attributes.check_bound(port, host)
            if not requested.port:
                port_resources.check_none(port)
            groups_of_port = [names.get(group_id, group_id) for group_id in port.security_groups]
            shown = security_groups if groups_of_port and not known else groups_of_port
            interfaces.append(interface_of(requested, port, shown))
            ports[port.id] = port
        if not network.built_in:
            interfaces = await interface_cache.describe(network, token, interfaces, ports)
    except NetworkError as error:
        if error.status == 412:
            raise TransientError(str(error)) from error
        # Users read this text, so it must not name the host.
        message = str(error).replace(host, "the host")
        raise Failed(f"Failed to allocate the network(s): {message}", fault=f"{host}: {error}") from error
    return interfaces


async def _secured_networks(network: NetworkClient, wanted: Sequence[RequestedInterface], token: str) -> frozenset[str]:
    """The networks whose ports have security groups: those with port security."""
    wanted_ids = sorted({requested.network_id for requested in wanted if requested.network_id and not requested.port})
    if network.built_in:
        return frozenset(wanted_ids)
    found = await network.networks(wanted_ids, token)
    # Some plugins of Neutron show the attribute as null.
    return frozenset(each.id for each in found if each.port_security_enabled is not False)


async def _auto_allocate(op: Operation, requested: RequestedInterface, token: str) -> RequestedInterface:
    """The interface on the project's auto-allocated network, created now because the server has a host."""
    network = await op.services.network.auto_allocate(str(op.project_id), token)
    return structs.replace(requested, network_id=network.id, label=network.name)


async def _bind(op: Operation, port_id: str, owner: Mapping[str, object], dns_name: str, token: str) -> Port:
    """Bind a port that is free or already this server's. The revision number decides between two servers."""
    port = await op.services.network.port(port_id, token)
    if port is None or port.project_id != op.project_id:
        raise Failed(f"Port id {port_id} could not be found.")
    if port.device_id not in ("", op.server_id):
        raise Failed(f"Port {port_id} is still in use.")
    changes = {
        **owner,
        **port_attributes.profile_changes(port, port_attributes.default_providers(op)(port)),
        **port_attributes.dns_changes(port, dns_name),
    }
    return await op.services.network.update_port(port_id, changes, token, port.revision_number)


async def release(op: Operation, given: Collection[str]) -> None:
    """Delete ports that were created for the server, and unbind `given` ports of the user. Idempotent."""
    network, token = op.services.network, await op.services.identity.token()
    there = await network.ports_of_device(str(op.server_id), str(op.project_id), token)
    await network.delete_ports([port.id for port in there if port.id not in given], token)
    left = [port for port in there if port.id in given]
    hostname = (await server_of(op)).hostname if any(port.dns_name for port in left) else ""
    for port in left:
        await unbind(op, port, hostname, token)


async def unbind(op: Operation, port: Port, hostname: str, token: str, revision: int | None = None) -> None:
    """Give a port back to its user. `hostname` is that of the server."""
    try:
        changes = port_attributes.changes_to_release(port, hostname)
        await op.services.network.update_port(port.id, changes, token, revision)
    except NetworkError as error:
        if error.status != 404:
            raise


async def prepare_standby(op: Operation, host: str) -> dict[str, Binding]:
    """Add an inactive binding to this host to every port, so that the ports can move at once. Returns the new bindings.

    Raises HostCallFailed if the network service cannot bind a port to the host.
    """
    token = await op.services.identity.token()
    hosts, created = {host}, {}
    async with _binding_errors(hosts):
        for port in await list_ports(op, token):
            hosts.add(port.binding_host_id or "")
            if port.binding_host_id != host and (binding := await _create_binding(op, port, host, token)):
                created[port.id] = binding
    return created


async def _create_binding(op: Operation, port: Port, host: str, token: str) -> Binding | None:
    network, port_id = op.services.network, port.id
    allocation = port_attributes.default_providers(op)(port)
    profile = port_attributes.profile_changes(port, allocation).get("binding:profile", port.binding_profile)
    wanted = {"host": host, "vnic_type": port.binding_vnic_type, "profile": profile}
    try:
        binding = await network.create_binding(port_id, wanted, token)
    except NetworkError as error:
        if error.kind == PORT_BINDING_ERROR:
            raise port_attributes.not_bound(port_id, host) from error
        if error.status == 404:
            return None  # the port is deleted, or the service has no extended bindings
        there = [one for one in await network.bindings(port_id, token) if one.host == host]
        if error.status != 409 or not there:
            raise
        binding = there[0]
    if binding.vif_type == BINDING_FAILED:
        raise port_attributes.not_bound(port_id, host)
    return binding


async def drop_standby(op: Operation, host: str) -> None:
    """Undo `prepare_standby`. Ports that are active on the host stay there."""
    token = await op.services.identity.token()
    hosts = {host}
    async with _binding_errors(hosts):
        for port in await list_ports(op, token):
            hosts.add(port.binding_host_id or "")
            if port.binding_host_id != host:
                await op.services.network.delete_binding(port.id, host, token)


async def move(op: Operation, host: str, allocation_of: AllocationOf | None = None) -> None:
    """Bind every port to this host only, or with an empty host to none. Idempotent.

    `allocation_of` is that of the host; by default that of the operation's claim.

    Raises HostCallFailed if the network service cannot bind a port to the host.
    """
    failures = await _move_all(op, host, allocation_of or port_attributes.default_providers(op), until_failure=True)
    if failures:
        raise failures[0]


async def return_to(op: Operation, host: str, allocation_of: AllocationOf | None = None) -> None:
    """Undo a move: like `move`, but a port that the network service cannot bind stays without its network.

    The operation would repeat the undo for ever, and the server could not be used meanwhile.
    """
    claim = op.find_result(CLAIM)
    former = port_attributes.former_providers(claim) if claim else None
    for failure in await _move_all(op, host, allocation_of or former or port_attributes.default_providers(op)):
        log.warning("server %s is left with an unbound port: %s", op.server_id, failure.fault)


async def _move_all(
    op: Operation, host: str, allocation_of: AllocationOf, *, until_failure: bool = False
) -> list[HostCallFailed]:
    """Move every port. Returns why ports could not be bound."""
    token = await op.services.identity.token()
    hosts, failures = {host}, list[HostCallFailed]()
    async with _binding_errors(hosts):
        for port in await list_ports(op, token):
            bindings = await op.services.network.bindings(port.id, token)
            active = next((one.host for one in bindings if one.status == "ACTIVE"), port.binding_host_id or "")
            others = {one.host for one in bindings} - {active}
            hosts |= {active, *others}
            changes = await port_attributes.changes_for_host(op, port, host, allocation_of)
            try:
                await _move(op, port, active, others, host, changes, token)
            except HostCallFailed as failure:
                failures.append(failure)
                if until_failure:
                    return failures
    if not op.services.network.built_in:
        await _store_bindings(op, token)
    return failures


async def _move(
    op: Operation, port: Port, active: str, others: set[str], host: str, changes: Attributes, token: str
) -> None:
    network, port_id = op.services.network, port.id
    try:
        if host in others:
            await network.activate_binding(port_id, host, token)
            others = {*others, active}
        elif host != active or port.binding_vif_type == BINDING_FAILED:
            changes = {"binding:host_id": host, **changes}
        if changes:
            port_attributes.check_bound(await network.update_port(port_id, changes, token), host)
        for other in sorted(others - {host, ""}):
            await network.delete_binding(port_id, other, token)
    except NetworkError as error:
        if error.kind == PORT_BINDING_ERROR:
            raise port_attributes.not_bound(port_id, host) from error
        if error.status == 404:
            # If the port is deleted, the next run skips it.
            raise TransientError(f"port {port_id} has changed just now") from error
        raise


async def _store_bindings(op: Operation, token: str) -> None:
    """Store how the ports are bound now, for the hosts and for what servers show."""
    server = await server_of(op)
    found = {port.id: port for port in await list_ports(op, token)}
    if all(nic == interface_cache.with_binding(nic, found.get(nic.port_id)) for nic in server.nics):
        return
    async with op.db.transaction() as tx:
        server = await server_of(op, tx)
        bound = [interface_cache.with_binding(nic, found.get(nic.port_id)) for nic in server.nics]
        await model.replace_interfaces(tx, server.id, bound)
        await fence(op, tx)


async def list_ports(op: Operation, token: str) -> list[Port]:
    """The ports of the server's interfaces, without those that users have deleted or rebound."""
    interfaces = (await server_of(op)).nics
    if not interfaces:
        return []
    found = await op.services.network.ports_of_device(
        str(op.server_id), str(op.project_id), token, expected=len(interfaces)
    )
    there = {port.id: port for port in found}
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
    op: Operation, requested: RequestedInterface, attributes: Mapping[str, object], groups: list[str]
) -> dict[str, object]:
    port: dict[str, object] = {"network_id": requested.network_id, "project_id": op.project_id, **attributes}
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
