"""Begins the operation that reads the interfaces of a server again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.servers.server import Server
from kilonova.operations import begin, get_kind
from kilonova.store import Transaction

if TYPE_CHECKING:
    from kilonova.services import Services

# The step of an operation after a change of the hostname.
RENAME = "rename ports"
# A queued operation reads everything that has changed before it starts.
_QUEUED = """
SELECT 1 FROM operations
WHERE guest_id = $1 AND kind = $2 AND finished_at IS NULL AND state = 'queued' LIMIT 1
"""


class RefreshInterfacesParams(Struct, frozen=True):
    """`former_hostname` is set if the hostname has changed."""

    server_id: str
    former_hostname: str = ""


async def begin_once(tx: Transaction, server: Server) -> None:
    """Begin the operation unless one is queued."""
    if server.nics and not await tx.fetch_value(_QUEUED, server.id, kinds.REFRESH_INTERFACES):
        await _begin(tx, server, RefreshInterfacesParams(server.id), without=frozenset({RENAME}))


async def begin_rename(tx: Transaction, server: Server, hostname: str | None, services: Services) -> None:
    """Begin the operation if this is another hostname than the server had."""
    if hostname and hostname != server.hostname and server.nics and not services.network.built_in:
        await _begin(tx, server, RefreshInterfacesParams(server.id, server.hostname))


async def _begin(
    tx: Transaction, server: Server, params: RefreshInterfacesParams, without: frozenset[str] = frozenset()
) -> None:
    await begin(
        tx,
        get_kind(kinds.REFRESH_INTERFACES, RefreshInterfacesParams),
        params=params,
        guest_id=server.id,
        project_id=server.project_id,
        user_id=server.user_id,
        without=without,
    )
