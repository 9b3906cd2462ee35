"""Operations leased by the test, which calls their steps itself. No worker runs them."""

from __future__ import annotations

from typing import Any

from msgspec import convert

from kilonova import clock
from kilonova.compute.migrations.model import begin_move
from kilonova.compute.operations.boot import Boot
from kilonova.compute.servers.server import Server
from kilonova.ids import new_id
from kilonova.operations import Operation
from kilonova.operations.row import OperationRow
from kilonova.placement.claims import Consumer, claim
from kilonova.store import Transaction
from tests.compute.operations.support import begin_stored
from tests.compute.operations.worlds import put_building_server
from tests.support.cloud import DEMO
from tests.support.full_cloud import FullCloud

USER = "member-id"
_LEASE = """
UPDATE operations SET lease_owner = 'test', lease_until = $2, epoch = epoch + 1, state = 'running' WHERE id = $1
RETURNING *
"""
_ALLOCATIONS = """
SELECT DISTINCT c.uuid, c.type, p.name FROM consumers c JOIN allocations a ON a.consumer_uuid = c.uuid
JOIN resource_providers p ON p.id = a.provider_id
"""


async def begin_leased(c: FullCloud, operation: type[Operation], server_id: str | None, **params: Any) -> Operation:
    async with c.db.transaction() as tx:
        operation_id = await begin_stored(tx, operation, params, server_id=server_id, project_id=DEMO, user_id=USER)
        return await _lease(c, tx, operation, operation_id)


async def begin_leased_move(
    c: FullCloud, operation: type[Operation], server_id: str, type: str, **params: Any
) -> Operation:
    async with c.db.transaction() as tx:
        server = Server.decode_optional(await tx.fetch_one("SELECT * FROM servers WHERE id = $1", server_id))
        assert server is not None
        given = convert(params, operation.params_type)
        operation_id = await begin_move(
            tx, operation, server, type=type, params=given, user_id=USER, request_id="req-move"
        )
        return await _lease(c, tx, operation, operation_id)


async def _lease(c: FullCloud, tx: Transaction, operation: type[Operation], operation_id: str) -> Operation:
    row = await tx.fetch_one(_LEASE, operation_id, clock.now() + 3600)
    assert row is not None
    return operation(OperationRow.decode(row), services=c.services, db=c.db)


async def begin_leased_boot(c: FullCloud, **server: Any) -> Operation:
    """The boot of a new server, before its first step."""
    server_id = new_id()
    await put_building_server(c.db, server_id, **server)
    return await begin_leased(c, Boot, server_id, networks=[], security_groups=[], destination=None)


async def get_server(c: FullCloud, server_id: str | None) -> Server:
    server = Server.decode_optional(await c.db.fetch_one("SELECT * FROM servers WHERE id = $1", server_id))
    assert server is not None
    return server


async def list_allocations(c: FullCloud) -> dict[str, tuple[str, str]]:
    """Type and host of each consumer."""
    return {row["uuid"]: (row["type"], row["name"]) for row in await c.db.fetch(_ALLOCATIONS)}


async def fill_host(c: FullCloud, host: str) -> None:
    """Claim all memory of the host for another consumer."""
    sql = """
    SELECT p.uuid, i.total - i.reserved - COALESCE((
        SELECT SUM(a.used) FROM allocations a WHERE a.provider_id = p.id AND a.resource_class = 'MEMORY_MB'), 0) AS free
    FROM resource_providers p JOIN inventories i ON i.provider_id = p.id AND i.resource_class = 'MEMORY_MB'
    WHERE p.name = $1
    """
    row = await c.db.fetch_one(sql, host)
    assert row is not None
    async with c.db.transaction() as tx:
        assert await claim(tx, Consumer(new_id(), DEMO, USER), {row["uuid"]: {"MEMORY_MB": int(row["free"])}})
