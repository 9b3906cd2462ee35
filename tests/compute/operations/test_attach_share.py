"""Generated tests of attaching shares."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.attach_share import AttachShare
from kilonova.compute.operations.power import Stop
from kilonova.compute.server_shares import model
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations.support import begin_stored
from tests.compute.operations.worlds import ServerOperation, World, run_operation
from tests.compute.server_shares.support import guest_shares, insert_server_share, make_share
from tests.support.cloud import DEMO
from tests.support.full_cloud import running_worker


class ShareOperation(ServerOperation):
    """A stopped server, and a share."""

    __test__ = False
    hosts: ClassVar[int] = 1

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        async with running_worker(db, world):
            self.share_id = await make_share(world.cloud)
        await run_operation(db, world, Stop)
        return world

    async def insert(self, tx: Transaction, world: World, status: str) -> str:
        """Insert the row, in place of that of an earlier operation. Returns its id."""
        await model.remove_all(tx, world.server_id)
        return await insert_server_share(tx, world.server_id, self.share_id, status)

    async def attach(self, db: Database, world: World) -> None:
        async with db.transaction() as tx:
            await self.begin_attach(tx, world)
        async with running_worker(db, world):
            path = f"/servers/{world.server_id}/shares/{self.share_id}"
            await world.cloud.until(path, lambda shown: shown["status"] == "inactive", version="2.97")

    async def begin_attach(self, tx: Transaction, world: World) -> str:
        params = {"server_share": await self.insert(tx, world, model.ATTACHING)}
        return await begin_stored(tx, AttachShare, params, server_id=world.server_id, project_id=DEMO)

    async def list_resources(self, db: Database, world: World) -> Any:
        return {
            **await super().list_resources(db, world),
            "guest": [(share.tag, share.location) for share in await guest_shares(world.cloud, world.server_id)],
            "rules": await db.fetch("SELECT access_to FROM share_access_rules"),
            "locks": await db.fetch("SELECT resource_type, action FROM share_locks ORDER BY 1, 2"),
            "deferred": await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL AND server_id IS NULL"),
        }

    async def outcome(self, db: Database, world: World) -> Any:
        shares = await model.of_server(db, world.server_id)
        return await self.list_resources(db, world), [(share.tag, share.status) for share in shares]


class TestAttachShare(ShareOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = AttachShare

    async def begin(self, tx: Transaction, world: World) -> str:
        return await self.begin_attach(tx, world)

    async def post_awaited_event(self, db: Database, world: World, op: str) -> None:
        """The built-in service gives access at once, so the first poll ends the wait."""
