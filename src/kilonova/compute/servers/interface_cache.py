"""What servers show of their interfaces, stored in their rows, so that lists of servers need not ask a real Neutron.

Neutron tells of changes, and a periodic task reads all interfaces again. The built-in service needs none of this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from kilonova.compute.servers import model
from kilonova.compute.servers.server import Interface, Server
from kilonova.network.client import Binding, NetworkClient, Port
from kilonova.store import Database

if TYPE_CHECKING:
    from kilonova.services import Services

log = logging.getLogger(__name__)


async def describe(
    network: NetworkClient, token: str, interfaces: Sequence[Interface], ports: Mapping[str, Port]
) -> list[Interface]:
    """The interfaces with all that the service knows of their ports. An interface without a port stays as it is."""
    here = [ports[interface.port_id] for interface in interfaces if interface.port_id in ports]
    networks, subnets, groups, floating = await asyncio.gather(
        network.networks(sorted({port.network_id for port in here}), token),
        network.subnets(sorted({fixed.subnet_id for port in here for fixed in port.fixed_ips}), token),
        network.groups(sorted({group_id for port in here for group_id in port.security_groups}), token),
        network.floating_ips_of_ports([port.id for port in here], token),
    )
    network_by_id = {each.id: each for each in networks}
    subnet_by_id = {each.id: each for each in subnets}
    group_names = {group.id: group.name for group in groups}
    addresses: dict[str, list[str]] = {}
    for each in sorted(floating, key=lambda floating: (floating.fixed_ip_address or "", floating.id)):
        addresses.setdefault(each.port_id or "", []).append(each.floating_ip_address)

    def described(interface: Interface) -> Interface:
        port = ports.get(interface.port_id)
        if port is None:
            return interface
        its_network = network_by_id.get(port.network_id)
        return structs.replace(
            interface,
            network_id=port.network_id,
            label=its_network.name if its_network else interface.label,
            mac=port.mac_address,
            addresses=[fixed.ip_address for fixed in port.fixed_ips],
            subnets=[subnet_by_id[fixed.subnet_id] for fixed in port.fixed_ips if fixed.subnet_id in subnet_by_id],
            security_groups=[group_names.get(group_id, group_id) for group_id in port.security_groups],
            mtu=(its_network.mtu or 0) if its_network else interface.mtu,
            floating_ips=addresses.get(port.id, []),
        )

    return [with_binding(described(interface), ports.get(interface.port_id)) for interface in interfaces]


def with_binding(interface: Interface, port: Port | None) -> Interface:
    """The interface with the way in which the port is bound."""
    if port is None:
        return interface
    return structs.replace(
        interface,
        vif_type=port.binding_vif_type or "",
        vif_details=port.binding_vif_details or {},
        vnic_type=port.binding_vnic_type,
        allocation=(port.binding_profile or {}).get("allocation"),
    )


def with_standby(interface: Interface, binding: Binding | None) -> Interface:
    """The interface as it is bound on the destination of a live migration."""
    if binding is None:
        return interface
    details, vnic_type = binding.vif_details or {}, binding.vnic_type
    return structs.replace(interface, vif_type=binding.vif_type, vif_details=details, vnic_type=vnic_type)


async def refresh(services: Services, servers: Sequence[Server]) -> list[tuple[Server, Interface]]:
    """Read the interfaces of the servers again. Returns those whose ports are deleted."""
    interfaces = [interface for server in servers for interface in server.nics]
    if not interfaces:
        return []
    network, token = services.network, await services.identity.token()
    ports = {port.id: port for port in await network.ports([interface.port_id for interface in interfaces], token)}
    described = {each.port_id: each for each in await describe(network, token, interfaces, ports)}
    read = {interface.port_id: interface for interface in interfaces}
    for server in servers:
        if any(described[interface.port_id] != interface for interface in server.nics):
            await _store(services.db, server.id, read, described)
    return [(server, interface) for server in servers for interface in server.nics if interface.port_id not in ports]


async def _store(
    db: Database, server_id: str, read: Mapping[str, Interface], described: Mapping[str, Interface]
) -> None:
    """Replace the interfaces that the server still has as they were `read`.

    An operation may have bound a port to another host meanwhile. Neutron then reports the port once more.
    """
    async with db.transaction() as tx:
        row = await tx.fetch_one("SELECT * FROM servers WHERE id = $1 AND NOT deleted FOR UPDATE", server_id)
        server = Server.decode_optional(row)
        if server is None:
            return
        # Operations decide on the rest.
        changed = [
            structs.replace(described[old.port_id], tag=old.tag, given=old.given, allocation=old.allocation)
            if read.get(old.port_id) == old
            else old
            for old in server.nics
        ]
        if changed != server.nics:
            await model.replace_interfaces(tx, server_id, changed)


def floating_ips(servers: Iterable[Server]) -> dict[str, list[str]]:
    """The stored floating IPs by port."""
    return {nic.port_id: nic.floating_ips for server in servers for nic in server.nics if nic.floating_ips}


async def servers_with_ids(db: Database, server_ids: Collection[str]) -> list[Server]:
    """The servers that still exist and have interfaces."""
    sql = "SELECT * FROM servers WHERE id = ANY($1) AND NOT deleted AND nics <> '[]' ORDER BY id"
    return Server.decode_all(await db.fetch(sql, sorted(server_ids)))
