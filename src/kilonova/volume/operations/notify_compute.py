"""Notify compute of a change to a volume that servers use. Retries while compute is unavailable."""

from __future__ import annotations

import logging

from msgspec import Struct

from kilonova.operations import Entry, Operation, Step, begin
from kilonova.store import Transaction
from kilonova.volume import operation_kinds as kinds
from kilonova.volume.compute_client import ComputeError
from kilonova.volume.operations.common import LANE, NamesVolume

log = logging.getLogger(__name__)

EXTENDED, REIMAGED = "volume-extended", "volume-reimaged"
# Longer than any server waits for the event.
_DEADLINE_SECONDS = 24 * 3600.0


class NotifyComputeParams(Struct, frozen=True):
    event: str
    server_id: str
    volume_id: str
    ok: bool


class NotifyCompute(Operation[NotifyComputeParams]):
    kind = kinds.NOTIFY_COMPUTE
    lane = LANE
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Entry[NotifyCompute], ...]:
        return (Step("notify", notify, undo=None, why="an event cannot be taken back", deadline=_DEADLINE_SECONDS),)


async def begin_notifications(tx: Transaction, op: Operation[NamesVolume], event: str, *, ok: bool = True) -> None:
    """Begin a notification for each server that has, or waits for, the operation's volume."""
    volume_id = op.params.volume_id
    rows = await tx.fetch(
        "SELECT DISTINCT server_id FROM volume_attachments WHERE volume_id = $1 AND server_id IS NOT NULL"
        " ORDER BY server_id",
        volume_id,
    )
    for row in rows:
        await begin(
            tx,
            NotifyCompute,
            params=NotifyComputeParams(event, row["server_id"], volume_id, ok),
            project_id=op.project_id,
            user_id=op.user_id,
            request_id=op.request_id,
        )


async def notify(op: NotifyCompute) -> None:
    event, volume_id = op.params.event, op.params.volume_id
    token = await op.services.identity.token()
    try:
        await op.services.compute.send_event(event, op.params.server_id, volume_id, token, ok=op.params.ok)
    except ComputeError as error:
        log.warning("%s of volume %s: %s", event, volume_id, error)
