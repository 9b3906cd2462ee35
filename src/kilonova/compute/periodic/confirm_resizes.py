"""Periodic task: confirm resizes that were neither confirmed nor reverted within `resize_confirm_seconds`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova import clock
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.confirm_resize import ConfirmResize
from kilonova.compute.operations.steps.move import EndResizeParams
from kilonova.compute.servers import states
from kilonova.compute.servers.server import Server
from kilonova.ids import new_id
from kilonova.operations import begin
from kilonova.store import Transaction

if TYPE_CHECKING:
    from kilonova.services import Services

INTERVAL_SECONDS = 5.0
_BATCH_SIZE = 500

# Any operation on the server restarts the interval, also a failed confirm or revert.
_RECENT = "SELECT 1 FROM operations o WHERE o.server_id = {} AND (o.finished_at IS NULL OR o.finished_at > $1) LIMIT 1"
_DUE = f"""
SELECT s.id FROM servers s WHERE s.vm_state = '{states.RESIZED}' AND NOT s.deleted
AND NOT EXISTS ({_RECENT.format("s.id")})
ORDER BY s.updated_at LIMIT {_BATCH_SIZE}
"""
_LOCK = f"SELECT * FROM servers WHERE id = $1 AND vm_state = '{states.RESIZED}' AND NOT deleted FOR UPDATE"


async def run(services: Services) -> None:
    """Also confirms locked servers: a lock only restricts users."""
    seconds = services.config.compute.resize_confirm_seconds
    if seconds <= 0:
        return
    until = clock.now() - seconds
    for due in await services.db.fetch(_DUE, until):
        async with services.db.transaction() as tx:
            # Another worker may have begun the operation before this one got the row lock.
            server = Server.decode_optional(await tx.fetch_one(_LOCK, due["id"]))
            if server is not None and not await tx.fetch_value(_RECENT.format("$2"), until, server.id):
                await _confirm(tx, server)


async def _confirm(tx: Transaction, server: Server) -> None:
    move = await moves.find_unconfirmed(tx, server.id)
    if move is None:
        return
    await begin(
        tx,
        ConfirmResize,
        params=EndResizeParams(move=move.operation_id),
        server_id=server.id,
        project_id=server.project_id,
        user_id=move.user_id,
        request_id=f"req-{new_id()}",
        host=server.host,
    )
