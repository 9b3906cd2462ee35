"""Periodic task: offload shelved servers after `shelved_offload_seconds`, volume-backed servers at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kilonova import clock
from kilonova.compute.operations.shelve import Offload, begin_offload
from kilonova.compute.servers import model, states
from kilonova.compute.servers.server import Server

if TYPE_CHECKING:
    from kilonova.services import Services

INTERVAL_SECONDS = 5.0
_RETRY_SECONDS = 300.0
_BATCH_SIZE = 500
_NEVER = -math.inf

_DUE = f"""
SELECT s.id FROM servers s
WHERE s.vm_state = '{states.SHELVED}' AND NOT s.deleted AND (s.shelved_at <= $1 OR s.image_id IS NULL)
AND NOT EXISTS (
    SELECT 1 FROM operations o WHERE o.server_id = s.id
    AND (o.finished_at IS NULL OR (o.kind = '{Offload.kind}' AND o.finished_at > $2 AND o.created_at >= s.shelved_at))
)
ORDER BY s.shelved_at LIMIT {_BATCH_SIZE}
"""
_LOCK = f"SELECT * FROM servers WHERE id = $1 AND vm_state = '{states.SHELVED}' AND NOT deleted FOR UPDATE"


async def run(services: Services) -> None:
    """Also needed with an interval of 0, where shelving offloads at once: a failed offload is tried again."""
    seconds = services.config.compute.shelved_offload_seconds
    now = clock.now()
    since = now - seconds if seconds >= 0 else _NEVER
    for due in await services.db.fetch(_DUE, since, now - _RETRY_SECONDS):
        async with services.db.transaction() as tx:
            server = Server.decode_optional(await tx.fetch_one(_LOCK, due["id"]))
            if server is not None and not await model.unfinished(tx, server.id):
                await begin_offload(tx, server)
