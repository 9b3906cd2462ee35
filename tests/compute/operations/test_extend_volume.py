"""Generated tests of extending a volume."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.extend_volume import ExtendVolume
from kilonova.operations import Operation
from kilonova.store import Transaction
from tests.compute.operations.attachment_worlds import VolumeOperation
from tests.compute.operations.support import begin_stored
from tests.compute.operations.worlds import World
from tests.support.cloud import DEMO


class TestExtendVolume(VolumeOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = ExtendVolume

    async def begin(self, tx: Transaction, world: World) -> str:
        await tx.execute("UPDATE volumes SET size = 2")
        params = {"volume_id": self.volumes["data"]}
        return await begin_stored(tx, ExtendVolume, params, server_id=world.server_id, project_id=DEMO)

    def check_result(self, seen: Any) -> None:
        assert seen["devices"] == [{"device_name": "/dev/vdb", "volume_size": 2}]
