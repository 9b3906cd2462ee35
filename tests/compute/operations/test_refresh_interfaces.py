"""Generated tests of refreshing interfaces, and of a boot and moves with what a real Neutron needs of them."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.boot import Boot
from kilonova.compute.operations.refresh_interfaces import RefreshInterfaces
from kilonova.compute.operations.resize import Migrate
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations import test_boot
from tests.compute.operations.support import begin_stored
from tests.compute.operations.worlds import MoveOperation, ServerOperation, World
from tests.support.cloud import DEMO
from tests.support.neutron import use_neutron


class TestRefreshInterfaces(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = RefreshInterfaces
    hosts = 1

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        neutron = use_neutron(world, world.cloud.app)
        sql = "SELECT id FROM ports WHERE device_id = $1"
        neutron.dns_names = {row["id"]: "before" for row in await db.fetch(sql, world.server_id)}
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        params = {"server_id": world.server_id, "former_hostname": "before"}
        return await begin_stored(tx, RefreshInterfaces, params, guest_id=world.server_id, project_id=DEMO)


class TestBootWithNeutron(test_boot.TestBoot):
    __test__ = True
    operation: ClassVar[type[Operation]] = Boot
    _expected: ClassVar[Any] = None

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        use_neutron(world, world.cloud.app)
        return world


class TestMigrateWithNeutron(MoveOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Migrate
    move_type = "migration"

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        use_neutron(world, world.cloud.app)
        return world
