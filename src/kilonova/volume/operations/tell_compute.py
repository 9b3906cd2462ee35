"""Tell compute of what was done to a volume that servers have, however long compute is away."""

from __future__ import annotations

import logging

from kilonova.operations import Operation, Step, begin
from kilonova.store import Transaction
from kilonova.volume.compute import ComputeError
from kilonova.volume.operations.common import LANE

log = logging.getLogger(__name__)

EXTENDED, REIMAGED = "volume-extended", "volume-reimaged"
# Servers do not wait for ever either.
_SECONDS = 24 * 3600.0


class TellCompute(Operation):
    """`params`: `event`, `server_id`, `volume_id`, `ok`."""

    kind = "tell of volume"
    lane = LANE
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step("tell", tell, undo=None, why="what is told stays told", deadline=_SECONDS),)


async def begin_telling(tx: Transaction, op: Operation, event: str, *, ok: bool = True) -> None:
    """Have it told to the servers that have the operation's volume, or wait for it, once `tx` is committed."""
    volume_id = op.params["volume_id"]
    rows = await tx.fetch(
        "SELECT DISTINCT server_id FROM volume_attachments WHERE volume_id = $1 AND server_id IS NOT NULL"
        " ORDER BY server_id",
        volume_id,
    )
    for row in rows:
        await begin(
            tx,
            TellCompute,
            params={"event": event, "server_id": row["server_id"], "volume_id": volume_id, "ok": ok},
            project_id=op.project_id,
            user_id=op.user_id,
            request_id=op.request_id,
        )


async def tell(op: Operation) -> None:
    asked = op.params
    token = await op.services.identity.token()
    try:
        await op.services.compute.tell(asked["event"], asked["server_id"], asked["volume_id"], token, ok=asked["ok"])
    except ComputeError as error:
        log.warning("%s of volume %s: %s", asked["event"], asked["volume_id"], error)
