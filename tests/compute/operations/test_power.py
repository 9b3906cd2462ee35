"""Generated tests of start, stop and reboot."""

from __future__ import annotations

from typing import ClassVar

from kilonova.compute.operations.power import HardReboot, Reboot, Start, Stop
from kilonova.operations import Operation, begin
from kilonova.store import Database
from tests.compute.operations.worlds import ServerOperation, World
from tests.support.cloud import DEMO
from tests.support.full_cloud import running_worker


class TestStop(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Stop


class TestStart(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Start

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        async with db.transaction() as tx:
            await begin(tx, Stop, server_id=world.server_id, project_id=DEMO)
        async with running_worker(db, world):
            await world.cloud.wait_until_settled(world.server_id)


class TestReboot(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Reboot


class TestHardReboot(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = HardReboot
