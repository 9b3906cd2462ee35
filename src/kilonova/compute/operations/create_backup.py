"""Create a backup: an image of a server, with rotation of older backups of the same type."""

from __future__ import annotations

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.operations.steps import images
from kilonova.compute.operations.steps.images import MAKE
from kilonova.compute.operations.steps.server import Harmless
from kilonova.image.client import ImageError
from kilonova.operations import Entry, Failed, Step, StepResult, transaction_step
from kilonova.store import Transaction

FIND = StepResult("find old backups", list[str])


class CreateBackupParams(Struct, frozen=True):
    """`rotation` is the number of backups of the type to keep."""

    name: str
    metadata: dict[str, str]
    type: str
    rotation: int


class CreateBackup(Harmless[CreateBackupParams]):
    kind = kinds.CREATE_BACKUP
    action = "createBackup"

    @staticmethod
    def steps() -> tuple[Entry[CreateBackup], ...]:
        return (
            images.make_image_step("image_backup"),
            images.snapshot_step(),
            Step(FIND, find_old_backups, undo=None, why="it changes nothing", deadline=300, task_state="image_backup"),
            transaction_step("rotate", rotate, "begins the deletion of old backups", task_state="image_backup"),
        )


async def find_old_backups(op: CreateBackup) -> list[str]:
    """The ids of backups above the rotation, oldest last. A protected backup counts and stays."""
    wanted = {
        "owner": str(op.project_id),
        "image_type": "backup",
        "backup_type": op.params.type,
        "instance_uuid": str(op.server_id),
    }
    try:
        found = await op.services.image.list(await op.services.identity.token(), wanted)
    except ImageError as error:
        raise Failed(f"The image service did not tell of old backups: {error}") from error
    newest_first = sorted(found, key=lambda image: (image.created_at, image.id == op.result(MAKE)), reverse=True)
    return [image.id for image in newest_first[op.params.rotation :] if not image.protected]


async def rotate(op: CreateBackup, tx: Transaction) -> None:
    for image_id in op.result(FIND):
        await images.begin_delete(tx, op, image_id)
