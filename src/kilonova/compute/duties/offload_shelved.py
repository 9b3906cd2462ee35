"""Shelved servers leave their hosts when the configured time is over; those that boot from a volume at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kilonova import clock
from kilonova.compute.operations.offload import Offload, begin_offload
from kilonova.compute.servers import model, states

if TYPE_CHECKING:
    from kilonova.services import Services

EVERY = 5.0
# Seconds until one is tried again that could not leave.
_AGAIN = 300.0
_AT_ONCE = 500
_NEVER = -math.inf

_DUE = f"""
SELECT s.id FROM servers s
WHERE s.vm_state = '{states.SHELVED}' AND NOT s.deleted AND (s.shelved_at <= $1 OR s.image_id IS NULL)
AND NOT EXISTS (
    SELECT 1 FROM operations o WHERE o.server_id = s.id
    AND (o.finished_at IS NULL OR (o.kind = '{Offload.kind}' AND o.finished_at > $2 AND o.created_at >= s.shelved_at))
)
ORDER BY s.shelved_at LIMIT {_AT_ONCE}
"""
_STILL = f"SELECT * FROM servers WHERE id = $1 AND vm_state = '{states.SHELVED}' AND NOT deleted FOR UPDATE"


async def run(services: Services) -> None:
    """Also where they leave at once: one whose offload failed is tried again."""
    seconds = services.config.compute.shelved_offload_seconds
    now = clock.now()
    since = now - seconds if seconds >= 0 else _NEVER
    for due in await services.db.fetch(_DUE, since, now - _AGAIN):
        async with services.db.transaction() as tx:
            server = await tx.fetch_one(_STILL, due["id"])
            if server is not None and not await model.unfinished(tx, server["id"]):
                await begin_offload(tx, server)
