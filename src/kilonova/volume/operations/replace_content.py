"""Operations that give a volume new content: create, re-image and revert.

The content is written to a new file. The volume keeps its old content until that file is complete.
"""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from kilonova import clock
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.store import Row, Transaction
from kilonova.volume.messages import model as messages
from kilonova.volume.operations import content
from kilonova.volume.operations.common import COPY_SECONDS, LANE, get_volume, remove_all_files
from kilonova.volume.operations.content import Source
from kilonova.volume.operations.delete_content import begin_delete
from kilonova.volume.operations.notify_compute import REIMAGED, begin_notifications
from kilonova.volume.types import requirements
from kilonova.volume.volumes import model, states

WRITE = "write content"


class ReplaceContent(Operation):
    """The steps of these operations. `params` has `volume_id`; the volume is in the status of the transition."""

    lane = LANE
    action = ""
    # Key of `states.TRANSITIONS`.
    transition: ClassVar[str]
    failure: ClassVar[messages.Action]

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(WRITE, write, undo=remove_new_content, deadline=COPY_SECONDS),
            transaction_step("settle", settle, "sets the content and the status"),
        )

    async def prepare(self, volume: Row) -> Source:
        """Return the source of the new content."""
        raise NotImplementedError

    async def finish(self, tx: Transaction, *, ok: bool) -> None:
        """Runs in the transaction that ends the operation."""

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await model.end_transition(tx, self.params["volume_id"], self.transition, ok=False)
        action = messages.SCHEDULE if requirements.is_unmet(error) else self.failure
        await messages.record_failure(tx, self, action, self.params["volume_id"], error)
        await self.finish(tx, ok=False)


class CreateVolume(ReplaceContent):
    """Create a volume: its file is written, blank or from an image, a snapshot or another volume.

    `params`: `volume_id`, `source` (see `content.Source`). The volume's row exists, in the status `creating`.
    """

    kind = "create_volume"
    transition = "create"
    failure = messages.CREATE

    async def prepare(self, volume: Row) -> Source:
        await requirements.check(self.db, volume["type_id"])
        source: Source = self.params["source"]
        if source and "image" in source:
            async with self.db.transaction() as tx:
                await tx.execute(
                    "UPDATE volumes SET status = $2 WHERE id = $1 AND status = $3",
                    volume["id"],
                    states.DOWNLOADING,
                    states.CREATING,
                )
        return source


class ReimageVolume(ReplaceContent):
    """Re-image a volume: an image replaces its content.

    `params`: `volume_id`, `image_id`. The volume is in the status `downloading`.
    """

    kind = "reimage_volume"
    transition = "os-reimage"
    failure = messages.REIMAGE

    async def prepare(self, volume: Row) -> Source:
        return {"image": self.params["image_id"]}

    async def finish(self, tx: Transaction, *, ok: bool) -> None:
        await begin_notifications(tx, self, REIMAGED, ok=ok)


class RevertVolume(ReplaceContent):
    """Revert a volume to its newest snapshot.

    `params`: `volume_id`, `snapshot_id`. The volume is in the status `reverting`, the snapshot in `restoring`.
    """

    kind = "revert_volume"
    transition = "revert"
    failure = messages.REVERT

    async def prepare(self, volume: Row) -> Source:
        return {"snapshot": self.params["snapshot_id"]}

    async def finish(self, tx: Transaction, *, ok: bool) -> None:
        await tx.execute(
            "UPDATE volume_snapshots SET status = 'available', updated_at = $2 WHERE id = $1 AND status = 'restoring'",
            self.params["snapshot_id"],
            clock.now(),
        )


async def write(op: ReplaceContent) -> dict[str, Any]:
    volume = await get_volume(op)
    return await content.write(op, content.VOLUME, volume, await op.prepare(volume))


async def remove_new_content(op: ReplaceContent) -> None:
    await remove_all_files(op, op.params["volume_id"])


async def settle(op: ReplaceContent, tx: Transaction) -> None:
    before = await get_volume(op, tx)
    written = op.results[WRITE]
    metadata = written["image_metadata"]
    await tx.execute(
        "UPDATE volumes SET data_id = $2, bootable = $3, image_metadata = $4, updated_at = $5 WHERE id = $1",
        before["id"],
        written["data_id"],
        written["bootable"],
        orjson.dumps(metadata).decode() if metadata else None,
        clock.now(),
    )
    await begin_delete(tx, op, before["data_id"])
    await model.end_transition(tx, op.params["volume_id"], op.transition)
    await op.finish(tx, ok=True)
