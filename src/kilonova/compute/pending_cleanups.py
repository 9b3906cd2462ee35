"""Guests that unfinished operations remove from hosts. The heartbeat fences hosts with such guests."""

from __future__ import annotations

from kilonova.compute import operation_kinds as kinds
from kilonova.hosts.heartbeat import PendingCleanup
from kilonova.store import Reader

# An evacuation counts as well, for the source: the removal of its guest comes next. A guest in a slot does not run, so
# its host is not fenced. `run_at >= 0` selects the index of unfinished operations.
_PENDING = f"""
SELECT id, host, kind = '{kinds.CLEAN_UP_GUEST}' AS fences FROM operations
WHERE kind IN ('{kinds.CLEAN_UP_GUEST}', '{kinds.CLEAN_UP_SLOT}') AND finished_at IS NULL AND run_at >= 0
    AND host IS NOT NULL
UNION ALL
SELECT o.id, m.source_host AS host, TRUE AS fences FROM operations o JOIN moves m ON m.operation_id = o.id
WHERE o.kind = '{kinds.EVACUATE}' AND o.finished_at IS NULL AND o.run_at >= 0
"""


async def find_pending_cleanups(reader: Reader) -> list[PendingCleanup]:
    return [PendingCleanup(row["id"], row["host"], bool(row["fences"])) for row in await reader.fetch(_PENDING)]
