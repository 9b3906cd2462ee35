"""Make a volume: its file is written, blank or from an image, a snapshot or another volume."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova import clock
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction
from kilonova.volume.files import GIB
from kilonova.volume.operations import content
from kilonova.volume.operations.common import COPY_SECONDS, Progress, files_of, new_data, volume_of
from kilonova.volume.volumes import model, states

WRITE = "write content"


class MakeVolume(Operation):
    """`params`: `volume_id`, `source` (see `content.Source`). The volume's row is there, in the status `creating`."""

    kind = "make volume"
    action = ""

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(WRITE, write, undo=remove, deadline=COPY_SECONDS),
            Step("settle", settle, undo=None, why="one transaction: what it is", deadline=30, transaction=True),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await model.set_status(tx, self.params["volume_id"], states.ERROR)


async def write(op: Operation) -> dict[str, Any]:
    volume = await volume_of(op)
    source: content.Source = op.params["source"]
    files = files_of(op)
    files.remove(f"{volume['id']}.{op.id}")
    if source and "image" in source:
        async with op.db.transaction() as tx:
            await tx.execute("UPDATE volumes SET status = $2 WHERE id = $1", volume["id"], states.DOWNLOADING)
    data_id = new_data(op)
    progress = Progress(op, "volumes", volume["id"], volume["size"] * GIB)
    about = await content.write(op, files.volume(volume["id"], data_id), volume["size"], source, progress)
    return {"data_id": data_id, **about}


async def remove(op: Operation) -> None:
    files_of(op).remove(f"{op.params['volume_id']}.{op.id}")


async def settle(op: Operation, tx: Transaction) -> None:
    volume = await volume_of(op, tx)
    made = op.results[WRITE]
    known = made["image_metadata"]
    await tx.execute(
        "UPDATE volumes SET data_id = $2, bootable = $3, image_metadata = $4, status = $5, progress = NULL,"
        " updated_at = $6 WHERE id = $1",
        volume["id"],
        made["data_id"],
        made["bootable"],
        orjson.dumps(known).decode() if known else None,
        states.AVAILABLE,
        clock.now(),
    )
