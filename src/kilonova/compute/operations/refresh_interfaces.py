"""Read the interfaces of a server again, after a real Neutron has told that they have changed."""

from __future__ import annotations

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.operations.steps.network_errors import network_errors
from kilonova.compute.servers import interface_cache
from kilonova.compute.servers.server import Server
from kilonova.operations import Entry, Operation, Step, begin
from kilonova.store import Transaction

# A queued operation reads everything that has changed before it starts.
_QUEUED = """
SELECT 1 FROM operations
WHERE guest_id = $1 AND kind = $2 AND finished_at IS NULL AND state = 'queued' AND attempt = 0 LIMIT 1
"""


class RefreshInterfacesParams(Struct, frozen=True):
    server_id: str


class RefreshInterfaces(Operation[RefreshInterfacesParams]):
    """Other operations of the server need not wait for it."""

    kind = kinds.REFRESH_INTERFACES
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Entry[RefreshInterfaces], ...]:
        why = "the row shows what the network service has"
        return (Step("refresh interfaces", refresh, undo=None, why=why, deadline=600),)


async def begin_once(tx: Transaction, server: Server) -> None:
    """Begin the operation unless one is queued."""
    if not server.nics or await tx.fetch_value(_QUEUED, server.id, kinds.REFRESH_INTERFACES):
        return
    await begin(
        tx,
        RefreshInterfaces,
        params=RefreshInterfacesParams(server.id),
        guest_id=server.id,
        project_id=server.project_id,
        user_id=server.user_id,
    )


async def refresh(op: RefreshInterfaces) -> None:
    async with network_errors():
        servers = await interface_cache.servers_with_ids(op.db, [op.params.server_id])
        await interface_cache.refresh(op.services, servers)
