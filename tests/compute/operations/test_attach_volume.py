"""Generated tests of attaching a volume."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.attach_volume import AttachVolume
from kilonova.operations import Operation
from kilonova.store import Transaction
from tests.compute.operations.attachment_worlds import OFFLOADED, VolumeOperation, begin_attach
from tests.compute.operations.worlds import Variant, World


class TestAttachVolume(VolumeOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = AttachVolume
    attached = False
    host: ClassVar[str | None] = "sim-001"

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin_attach(tx, world, self.volumes["data"])

    def check_result(self, seen: Any) -> None:
        data = seen["volumes"]["data"]
        assert (data["status"], data["attachments"], data["connected to"]) == (
            "in-use",
            [("attached", self.host)],
            self.host,
        )
        assert bool(data["in guests"]) == (self.host is not None)


class TestAttachVolumeToOffloaded(Variant, TestAttachVolume):
    _expected: ClassVar[Any] = None
    before = OFFLOADED
    host = None
