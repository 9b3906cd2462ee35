"""Generated tests of swapping a volume."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.swap_volume import SwapVolume
from kilonova.operations import Operation
from kilonova.store import Transaction
from tests.compute.operations.attachment_worlds import VolumeOperation, device_uuid
from tests.compute.operations.support import begin_stored
from tests.compute.operations.worlds import World
from tests.support.cloud import DEMO


class TestSwapVolume(VolumeOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = SwapVolume
    names = ("data", "other")

    async def begin(self, tx: Transaction, world: World) -> str:
        old, new = self.volumes["data"], self.volumes["other"]
        params = {
            "device": await device_uuid(tx, world, old),
            "old": old,
            "new": {"id": new, "size": 1, "multiattach": False},
        }
        return await begin_stored(tx, SwapVolume, params, server_id=world.server_id, project_id=DEMO)

    def check_result(self, seen: Any) -> None:
        old, new = seen["volumes"]["data"], seen["volumes"]["other"]
        assert (old["status"], old["attachments"], old["in guests"]) == ("available", [], [])
        assert (new["status"], new["attachments"], new["connected to"]) == (
            "in-use",
            [("attached", "sim-001")],
            "sim-001",
        )
        assert new["in guests"]
