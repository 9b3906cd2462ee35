"""Servers that were deleted so that they can be restored are deleted for good when the configured time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova import clock
from kilonova.compute.operations.soft_delete import SoftDelete
from kilonova.compute.servers import model, states
from kilonova.compute.servers.deferring import begin_delete
from kilonova.ids import new_id

if TYPE_CHECKING:
    from kilonova.services import Services

EVERY = 5.0
_AT_ONCE = 500

_DUE = f"""
SELECT s.id FROM servers s
WHERE s.vm_state = '{states.SOFT_DELETED}' AND NOT s.deleted AND s.soft_deleted_at <= $1
AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.server_id = s.id AND o.finished_at IS NULL)
ORDER BY s.soft_deleted_at LIMIT {_AT_ONCE}
"""
_STILL = f"SELECT * FROM servers WHERE id = $1 AND vm_state = '{states.SOFT_DELETED}' AND NOT deleted FOR UPDATE"
_DELETER = "SELECT user_id FROM operations WHERE server_id = $1 AND kind = $2 ORDER BY seq DESC LIMIT 1"


async def run(services: Services) -> None:
    """Also where servers are deleted at once by now: those of before are not kept for ever."""
    until = clock.now() - max(0.0, services.config.compute.reclaim_seconds)
    for due in await services.db.fetch(_DUE, until):
        async with services.db.transaction() as tx:
            server = await tx.fetch_one(_STILL, due["id"])
            if server is not None and not await model.unfinished(tx, server["id"]):
                deleter = await tx.fetch_value(_DELETER, server["id"], SoftDelete.kind)
                await begin_delete(tx, server, deleter, f"req-{new_id()}")
