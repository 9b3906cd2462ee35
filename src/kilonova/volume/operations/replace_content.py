"""Operations that give a volume new content: create, re-image and revert.

The content is written to a new file. The volume keeps its old content until that file is complete.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

from msgspec import Struct

from kilonova import clock
from kilonova.operations import Entry, Failed, Operation, Step, StepResult, transaction_step
from kilonova.store import Transaction
from kilonova.store.records import encode_document
from kilonova.volume import operation_kinds as kinds
from kilonova.volume.messages import model as messages
from kilonova.volume.operations import content
from kilonova.volume.operations.common import COPY_SECONDS, LANE, NamesVolume, get_volume, remove_all_files
from kilonova.volume.operations.content import Content, Source
from kilonova.volume.operations.delete_content import begin_delete
from kilonova.volume.operations.notify_compute import REIMAGED, begin_notifications
from kilonova.volume.types import requirements
from kilonova.volume.volumes import model, states
from kilonova.volume.volumes.model import Volume

WRITE = StepResult("write content", Content)
P_co = TypeVar("P_co", bound=NamesVolume, covariant=True)


class CreateVolumeParams(Struct, frozen=True):
    """`image_hash` is the hash of the source image when the volume was requested; empty if it is unknown."""

    volume_id: str
    source: Source
    image_hash: str = ""


class ReimageVolumeParams(Struct, frozen=True):
    """`image_hash` is as of CreateVolumeParams."""

    volume_id: str
    image_id: str
    image_hash: str = ""


class RevertVolumeParams(Struct, frozen=True):
    volume_id: str
    snapshot_id: str


class ReplaceContent(Operation[P_co]):
    """The steps of these operations. The volume is in the status of the transition."""

    lane = LANE
    action = ""
    # Key of `states.TRANSITIONS`.
    transition: ClassVar[str]
    failure: ClassVar[messages.Action]

    @staticmethod
    def steps() -> tuple[Entry[ReplaceContent[NamesVolume]], ...]:
        return (
            Step(WRITE, write, undo=remove_new_content, deadline=COPY_SECONDS),
            transaction_step("settle", settle, "sets the content and the status"),
        )

    @property
    def image_hash(self) -> str:
        """The hash of the source image when the content was requested; empty if it is unknown."""
        return ""

    async def prepare(self, volume: Volume) -> Source:
        """Return the source of the new content."""
        raise NotImplementedError

    async def finish(self, tx: Transaction, *, ok: bool) -> None:
        """Runs in the transaction that ends the operation."""

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await model.end_transition(tx, self.params.volume_id, self.transition, ok=False)
        action = messages.SCHEDULE if requirements.is_unmet(error) else self.failure
        await messages.record_failure(tx, self, action, self.params.volume_id, error)
        await self.finish(tx, ok=False)


class CreateVolume(ReplaceContent[CreateVolumeParams]):
    """Create a volume: its file is written, blank or from an image, a snapshot or another volume.

    The volume's row exists, in the status `creating`.
    """

    kind = kinds.CREATE_VOLUME
    transition = "create"
    failure = messages.CREATE

    @property
    def image_hash(self) -> str:
        return self.params.image_hash

    async def prepare(self, volume: Volume) -> Source:
        await requirements.check(self.db, volume.type_id)
        source = self.params.source
        if source and "image" in source:
            async with self.db.transaction() as tx:
                await tx.execute(
                    "UPDATE volumes SET status = $2 WHERE id = $1 AND status = $3",
                    volume.id,
                    states.DOWNLOADING,
                    states.CREATING,
                )
        return source


class ReimageVolume(ReplaceContent[ReimageVolumeParams]):
    """Re-image a volume: an image replaces its content. The volume is in the status `downloading`."""

    kind = kinds.REIMAGE_VOLUME
    transition = "os-reimage"
    failure = messages.REIMAGE

    @property
    def image_hash(self) -> str:
        return self.params.image_hash

    async def prepare(self, volume: Volume) -> Source:
        return {"image": self.params.image_id}

    async def finish(self, tx: Transaction, *, ok: bool) -> None:
        await begin_notifications(tx, self, REIMAGED, ok=ok)


class RevertVolume(ReplaceContent[RevertVolumeParams]):
    """Revert a volume to its newest snapshot. The volume is in the status `reverting`, the snapshot in `restoring`."""

    kind = kinds.REVERT_VOLUME
    transition = "revert"
    failure = messages.REVERT

    async def prepare(self, volume: Volume) -> Source:
        return {"snapshot": self.params.snapshot_id}

    async def finish(self, tx: Transaction, *, ok: bool) -> None:
        await tx.execute(
            "UPDATE volume_snapshots SET status = 'available', updated_at = $2 WHERE id = $1 AND status = 'restoring'",
            self.params.snapshot_id,
            clock.now(),
        )


async def write(op: ReplaceContent[NamesVolume]) -> Content:
    volume = await get_volume(op)
    return await content.write(op, content.VOLUME, volume, await op.prepare(volume), op.image_hash)


async def remove_new_content(op: ReplaceContent[NamesVolume]) -> None:
    await remove_all_files(op, op.params.volume_id)


async def settle(op: ReplaceContent[NamesVolume], tx: Transaction) -> None:
    before = await get_volume(op, tx)
    written = op.result(WRITE)
    await tx.execute(
        "UPDATE volumes SET data_id = $2, bootable = $3, image_metadata = $4, updated_at = $5 WHERE id = $1",
        before.id,
        written.data_id,
        written.bootable,
        encode_document(written.image_metadata) if written.image_metadata else None,
        clock.now(),
    )
    await begin_delete(tx, op, before.data_id)
    await model.end_transition(tx, op.params.volume_id, op.transition)
    await op.finish(tx, ok=True)
