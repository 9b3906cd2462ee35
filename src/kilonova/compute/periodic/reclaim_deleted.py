"""Periodic task: delete soft-deleted servers for good after `reclaim_seconds`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova import clock
from kilonova.compute.operations.soft_delete import SoftDelete
from kilonova.compute.servers import model, states
from kilonova.compute.servers.actions.delete import begin_delete
from kilonova.compute.servers.server import Server
from kilonova.ids import new_id

if TYPE_CHECKING:
    from kilonova.services import Services

INTERVAL_SECONDS = 5.0
_BATCH_SIZE = 500

_DUE = f"""
SELECT s.id FROM servers s
WHERE s.vm_state = '{states.SOFT_DELETED}' AND NOT s.deleted AND s.soft_deleted_at <= $1
AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.server_id = s.id AND o.finished_at IS NULL)
ORDER BY s.soft_deleted_at LIMIT {_BATCH_SIZE}
"""
_LOCK = f"SELECT * FROM servers WHERE id = $1 AND vm_state = '{states.SOFT_DELETED}' AND NOT deleted FOR UPDATE"
_DELETER = "SELECT user_id FROM operations WHERE server_id = $1 AND kind = $2 ORDER BY seq DESC LIMIT 1"


async def run(services: Services) -> None:
    """Also runs with an interval of 0: servers that were soft-deleted before that setting are deleted too."""
    until = clock.now() - max(0.0, services.config.compute.reclaim_seconds)
    for due in await services.db.fetch(_DUE, until):
        async with services.db.transaction() as tx:
            server = Server.decode_optional(await tx.fetch_one(_LOCK, due["id"]))
            if server is not None and not await model.unfinished(tx, server.id):
                deleter = await tx.fetch_value(_DELETER, server.id, SoftDelete.kind)
                await begin_delete(tx, server, deleter, f"req-{new_id()}")
