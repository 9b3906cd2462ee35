"""Generated tests of backups."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.create_backup import CreateBackup
from kilonova.operations import Operation
from kilonova.store import Database
from tests.compute.operations.worlds import GuestOperation, Operations, World


class TestCreateBackup(GuestOperation):
    """The older backup is deleted last, only after a success."""

    __test__ = True
    operation: ClassVar[type[Operation]] = CreateBackup
    params: ClassVar[dict[str, Any]] = {
        "name": "new",
        "metadata": {"image_type": "backup", "backup_type": "daily"},
        "type": "daily",
        "rotation": 1,
    }
    before: ClassVar[Operations] = ((CreateBackup, {**params, "name": "old"}),)

    async def outcome(self, db: Database, world: World) -> Any:
        """Another operation deletes the image; only its existence is checked."""
        deletions = await db.fetch_value("SELECT COUNT(*) FROM operations WHERE kind = 'delete_image'")
        return {**await self.list_resources(db, world), "images": ..., "deletions": deletions}
