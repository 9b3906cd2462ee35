"""Deleting what was resized or shelved, from the table of the deletion: whatever breaks, nothing is left over."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.delete import Delete
from kilonova.compute.operations.offload import Offload
from kilonova.compute.operations.shelve import Shelve
from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.compute.operations.test_confirm_resize import ResizedServer
from tests.compute.operations.test_shelve import ShelvingOperation
from tests.compute.operations.test_silence import all_done
from tests.compute.operations.worlds import MoveOperation, OnceMore, World
from tests.support.cloud import DEMO
from tests.support.whole import working


class Deletion(MoveOperation):
    """It only goes forward: one that failed keeps its server, so that nothing of it is without an owner."""

    __test__ = False
    operation: ClassVar[type[Operation]] = Delete

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin(tx, Delete, server_id=world.server_id, project_id=DEMO, user_id="member-id")

    async def census(self, db: Database, world: World) -> Any:
        whole = await super().census(db, world)
        held = {key: whole[key] for key in ("shares", "ports", "standby", "guests", "kept", "images")}
        deleted = await db.fetch_value("SELECT deleted FROM servers WHERE id = $1", world.server_id)
        return {"orphans": held if deleted else {}, "deleted": deleted}

    async def outcome(self, db: Database, world: World) -> Any:
        async with working(db, world):  # the image goes by an operation of its own
            await all_done(world.cloud)
        return await self.census(db, world), await db.fetch("SELECT outcome FROM moves")


class TestDeleteResized(Deletion, ResizedServer):
    __test__ = True


class TestDeleteShelved(Deletion, ShelvingOperation):
    __test__ = True
    before: ClassVar[tuple[type[Operation], ...]] = (Shelve,)


class TestDeleteOffloaded(OnceMore, TestDeleteShelved):
    _expected: ClassVar[Any] = None
    before = (Shelve, Offload)
