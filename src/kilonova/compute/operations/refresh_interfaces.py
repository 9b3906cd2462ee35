"""Read the interfaces of a server again, after a real Neutron has told that they have changed.

If the server's hostname has changed, its ports get the new name in Neutron's DNS first.
"""

from __future__ import annotations

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.operations.steps import port_attributes
from kilonova.compute.operations.steps.interface_refresh import RENAME, RefreshInterfacesParams
from kilonova.compute.operations.steps.network_errors import ignored_if_deleted, network_errors
from kilonova.compute.servers import interface_cache
from kilonova.operations import Entry, Operation, Step


class RefreshInterfaces(Operation[RefreshInterfacesParams]):
    """Other operations of the server need not wait for it."""

    kind = kinds.REFRESH_INTERFACES
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Entry[RefreshInterfaces], ...]:
        why = "the row shows what the network service has"
        return (
            Step(RENAME, rename, undo=None, why="the server keeps its new hostname", deadline=3600),
            Step("refresh interfaces", refresh, undo=None, why=why, deadline=600),
        )


async def rename(op: RefreshInterfaces) -> None:
    """Give ports with the former name the present one. Users may have given others to their ports."""
    network, former = op.services.network, port_attributes.dns_label(op.params.former_hostname)
    servers = await interface_cache.servers_with_ids(op.db, [op.params.server_id])
    if not servers or not former:
        return
    token = await op.services.identity.token()
    name = port_attributes.dns_label(servers[0].hostname)
    async with network_errors():
        for port in await network.ports([nic.port_id for nic in servers[0].nics], token):
            if port.dns_name == former != name:
                with ignored_if_deleted():
                    await network.update_port(port.id, {"dns_name": name}, token, port.revision_number)


async def refresh(op: RefreshInterfaces) -> None:
    async with network_errors():
        servers = await interface_cache.servers_with_ids(op.db, [op.params.server_id])
        await interface_cache.refresh(op.services, servers)
