"""The steps of operations that give a volume content: a file of its own is written beside, and taken in one go."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova import clock
from kilonova.operations import Operation
from kilonova.store import Row, Transaction
from kilonova.volume.operations import content
from kilonova.volume.operations.common import clear_all, volume_of
from kilonova.volume.operations.drop_content import begin_drop

WRITE = "write content"


async def write(op: Operation, volume: Row, source: content.Source) -> dict[str, Any]:
    return await content.make(op, content.VOLUME, volume, source)


async def remove(op: Operation) -> None:
    """The undo: the volume has what it had."""
    await clear_all(op, op.params["volume_id"])


async def take(op: Operation, tx: Transaction) -> None:
    """From now on the volume has what was written; what it had is dropped."""
    before = await volume_of(op, tx)
    made = op.results[WRITE]
    known = made["image_metadata"]
    await tx.execute(
        "UPDATE volumes SET data_id = $2, bootable = $3, image_metadata = $4, updated_at = $5 WHERE id = $1",
        before["id"],
        made["data_id"],
        made["bootable"],
        orjson.dumps(known).decode() if known else None,
        clock.now(),
    )
    await begin_drop(tx, op, before["data_id"])
