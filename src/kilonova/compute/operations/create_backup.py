"""Create a backup: an image of a server, with rotation of older backups of the same type."""

from __future__ import annotations

from kilonova.compute.operations.steps import images
from kilonova.compute.operations.steps.images import MAKE
from kilonova.compute.operations.steps.server import Harmless
from kilonova.image.client import ImageError
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.store import Transaction

FIND = "find old backups"


class CreateBackup(Harmless):
    """`params`: those of CreateImage, `type`, and `rotation`, the number of backups of the type to keep."""

    kind = "create_backup"
    action = "createBackup"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            images.make_image_step("image_backup"),
            images.snapshot_step(),
            Step(FIND, find_old_backups, undo=None, why="it changes nothing", deadline=300, task_state="image_backup"),
            transaction_step("rotate", rotate, "begins the deletion of old backups", task_state="image_backup"),
        )


async def find_old_backups(op: Operation) -> list[str]:
    """The ids of backups above the rotation, oldest last. A protected backup counts and stays."""
    wanted = {
        "owner": str(op.project_id),
        "image_type": "backup",
        "backup_type": op.params["type"],
        "instance_uuid": str(op.server_id),
    }
    try:
        found = await op.services.image.list(await op.services.identity.token(), wanted)
    except ImageError as error:
        raise Failed(f"The image service did not tell of old backups: {error}") from error
    newest_first = sorted(found, key=lambda image: (image["created_at"], image["id"] == op.results[MAKE]), reverse=True)
    return [image["id"] for image in newest_first[op.params["rotation"] :] if not image["protected"]]


async def rotate(op: Operation, tx: Transaction) -> None:
    for image_id in op.results[FIND]:
        await images.begin_delete(tx, op, image_id)
