"""Generated tests of detaching a volume."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.detach_volume import DetachVolume
from kilonova.operations import Operation
from kilonova.store import Transaction
from tests.compute.operations.attachment_worlds import OFFLOADED, VolumeOperation, device_uuid
from tests.compute.operations.support import begin_stored
from tests.compute.operations.worlds import Variant, World
from tests.support.cloud import DEMO


class TestDetachVolume(VolumeOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = DetachVolume

    async def begin(self, tx: Transaction, world: World) -> str:
        params = {"device": await device_uuid(tx, world, self.volumes["data"])}
        return await begin_stored(tx, DetachVolume, params, server_id=world.server_id, project_id=DEMO)

    def check_result(self, seen: Any) -> None:
        data = seen["volumes"]["data"]
        assert (data["status"], data["attachments"], data["in guests"]) == ("available", [], [])
        assert seen["devices"] == []


class TestDetachVolumeFromOffloaded(Variant, TestDetachVolume):
    _expected: ClassVar[Any] = None
    before = OFFLOADED
