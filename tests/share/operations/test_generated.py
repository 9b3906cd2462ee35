"""Generated tests of the operations of shares: each step repeated, failed and killed."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from typing import Any, ClassVar

from kilonova.config import load
from kilonova.ids import new_id
from kilonova.operations import Operation
from kilonova.operations.testing import OperationTests
from kilonova.services import Services
from kilonova.share.files import ShareFiles
from kilonova.share.operations.create_share import CreateShare
from kilonova.share.operations.delete_share import DeleteShare
from kilonova.share.shares.model import Share
from kilonova.store import Database, Transaction
from kilonova.store.insert import insert_row
from tests.compute.operations.support import begin_stored
from tests.support.cloud import DEMO


class World(Services):
    files: ShareFiles
    share_id: str
    stack: AsyncExitStack


class ShareOperation(OperationTests):
    __test__ = False
    status: ClassVar[str]

    async def prepare(self, db: Database) -> World:
        world = World()
        world.stack, world.db, world.config = AsyncExitStack(), db, load(environ={})
        world.config.data = world.stack.enter_context(tempfile.TemporaryDirectory())
        world.files, world.share_id = ShareFiles.of(world.config), new_id()
        share = Share(
            id=world.share_id,
            project_id=DEMO,
            user_id="member-id",
            size=1,
            status=self.status,
            zone="nova",
            metadata={},
            created_at=1.0,
            updated_at=1.0,
        )
        async with db.transaction() as tx:
            await insert_row(tx, Share.table, share.encode())
        return world

    async def tear_down(self, world: World) -> None:
        await world.stack.aclose()

    async def begin(self, tx: Transaction, world: World) -> str:
        await tx.execute("UPDATE shares SET status = $2 WHERE id = $1", world.share_id, self.status)
        return await begin_stored(tx, self.operation, {"share_id": world.share_id}, project_id=DEMO)

    async def list_resources(self, db: Database, world: World) -> Any:
        root = world.files.root
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path != world.files.deleted)

    async def outcome(self, db: Database, world: World) -> Any:
        rows = await db.fetch("SELECT status, export_path FROM shares")
        return [(row["status"], row["export_path"] == world.files.export_path(world.share_id)) for row in rows], len(
            await self.list_resources(db, world)
        )


class TestCreateShare(ShareOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = CreateShare
    status = "creating"


class TestDeleteShare(ShareOperation):
    """No undo: what a failed deletion has removed stays removed."""

    __test__ = True
    operation: ClassVar[type[Operation]] = DeleteShare
    status = "deleting"
    test_failures_leave_nothing: ClassVar[Any] = None

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        world.files.create(world.share_id)
        (world.files.root / world.share_id / "file").write_text("content")
        return world
