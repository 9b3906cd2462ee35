"""Generated tests of delete."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.delete import Delete
from kilonova.compute.operations.shelve import Offload, Shelve
from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.compute.operations.support import finish_operations
from tests.compute.operations.test_attach_share import ShareOperation
from tests.compute.operations.test_confirm_resize import ResizedServer
from tests.compute.operations.test_shelve import ShelvingOperation
from tests.compute.operations.volume_worlds import ServerWithNewVolumes
from tests.compute.operations.worlds import MoveOperation, ServerOperation, Variant, World
from tests.support.cloud import DEMO
from tests.support.full_cloud import running_worker


class TestDelete(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Delete

    async def list_resources(self, db: Database, world: World) -> Any:
        """Delete has no undo: after a failure the server still owns its resources."""
        whole = await super().list_resources(db, world)
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        held = {key: whole[key] for key in ("allocations", "ports", "guests")}
        return {"orphans": held if server["deleted"] else {}, "deleted": server["deleted"]}


class TestDeleteWithVolumes(ServerWithNewVolumes):
    __test__ = True
    operation: ClassVar[type[Operation]] = Delete

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        async with db.transaction() as tx:
            await self.begin_boot(tx, world)
        async with running_worker(db, world):
            shown = await world.cloud.wait_until_settled(world.server_id)
        assert shown["status"] == "ACTIVE", shown

    async def list_resources(self, db: Database, world: World) -> Any:
        """Delete has no undo: after a failure the server still owns its resources."""
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        return {"deleted": server["deleted"], **(await self.list_volumes(db, world) if server["deleted"] else {})}

    async def outcome(self, db: Database, world: World) -> Any:
        seen = await self.list_resources(db, world)
        if seen["deleted"]:
            # The root volume was deleted with the server; the others are available.
            assert [(volume["size"], volume["status"]) for volume in seen["volumes"]] == [
                (1, "available"),
                (2, "available"),
            ], seen
            assert not seen["attachments"] and not seen["devices"], seen  # noqa: PT018
        return seen


class TestDeleteWithShares(ShareOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Delete

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        await self.attach(db, world)
        return world

    async def list_resources(self, db: Database, world: World) -> Any:
        """Delete has no undo: after a failure the server still owns its resources."""
        deleted = await db.fetch_value("SELECT deleted FROM servers WHERE id = $1", world.server_id)
        tables = ("server_shares", "share_access_rules", "share_locks")
        held = {table: await db.fetch_value(f"SELECT COUNT(*) FROM {table}") for table in tables}
        return {"deleted": deleted, "orphans": held if deleted else {}}

    async def outcome(self, db: Database, world: World) -> Any:
        seen = await self.list_resources(db, world)
        assert not any(seen["orphans"].values()), seen
        return seen


class DeleteMoved(MoveOperation):
    """Deletes a resized or shelved server."""

    __test__ = False
    operation: ClassVar[type[Operation]] = Delete

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin(tx, Delete, server_id=world.server_id, project_id=DEMO, user_id="member-id")

    async def list_resources(self, db: Database, world: World) -> Any:
        whole = await super().list_resources(db, world)
        held = {key: whole[key] for key in ("allocations", "ports", "standby bindings", "guests", "slots", "images")}
        deleted = await db.fetch_value("SELECT deleted FROM servers WHERE id = $1", world.server_id)
        return {"orphans": held if deleted else {}, "deleted": deleted}

    async def outcome(self, db: Database, world: World) -> Any:
        async with running_worker(db, world):  # another operation deletes the image
            await finish_operations(world.cloud)
        return await self.list_resources(db, world), await db.fetch("SELECT outcome FROM moves")


class TestDeleteResized(DeleteMoved, ResizedServer):
    __test__ = True


class TestDeleteShelved(DeleteMoved, ShelvingOperation):
    __test__ = True
    before: ClassVar[tuple[type[Operation], ...]] = (Shelve,)


class TestDeleteOffloaded(Variant, TestDeleteShelved):
    _expected: ClassVar[Any] = None
    before = (Shelve, Offload)
