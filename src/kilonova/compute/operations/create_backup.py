"""Create a backup: an image of a server like any other, but of its type only so many newest ones are kept."""

from __future__ import annotations

from kilonova.compute.operations import create_image, images
from kilonova.compute.operations.common import Harmless
from kilonova.compute.operations.create_image import HOURS, MAKE, SNAPSHOT, UPLOADING
from kilonova.image.client import ImageError
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction

LOOK = "look for old backups"


class CreateBackup(Harmless):
    """`params`: those of CreateImage; `type`; and `rotation`, how many backups of the type are left at the end."""

    kind = "create backup"
    action = "createBackup"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        filled = f"the image that it fills is deleted by undoing '{MAKE}'"
        return (
            Step(
                MAKE,
                create_image.make,
                undo=create_image.drop,
                deadline=120,
                task_state="image_backup",
                # Else the image service might make it after the undo has looked for it.
                cancellable=False,
            ),
            Step(SNAPSHOT, create_image.fill, undo=None, why=filled, deadline=6 * HOURS, task_state=UPLOADING),
            Step(LOOK, look, undo=None, why="a look changes nothing", deadline=300, task_state="image_backup"),
            Step(
                "rotate",
                rotate,
                undo=None,
                why="one transaction: the orders to delete old backups",
                deadline=30,
                transaction=True,
                task_state="image_backup",
            ),
        )


async def look(op: Operation) -> list[str]:
    """The ids of those that are too many, oldest last. One that is protected stays, and counts."""
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
    for image_id in op.results[LOOK]:
        await images.begin_drop(tx, op, image_id)
