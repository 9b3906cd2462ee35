"""Generated tests of updating a guest's metadata, at once or deferred."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from kilonova.compute.operations.update_metadata import DeferredUpdateMetadata, UpdateMetadata
from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.compute.operations.support import begin_stored
from tests.compute.operations.worlds import ServerOperation, Variant, World
from tests.compute.servers.support import guest_on
from tests.support.cloud import DEMO

CHANGE = """UPDATE servers SET name = 'new', metadata = '{"a":"1"}'"""


class TestUpdateMetadata(ServerOperation):
    """UpdateMetadata has no undo: the guest's metadata matches the server's row."""

    __test__ = True
    operation: ClassVar[type[Operation]] = UpdateMetadata
    hosts: ClassVar[int] = 1

    async def begin(self, tx: Transaction, world: World) -> str:
        await tx.execute(CHANGE)
        return await begin(tx, UpdateMetadata, server_id=world.server_id, project_id=DEMO)

    async def outcome(self, db: Database, world: World) -> Any:
        guest = guest_on(world.cloud, "sim-001", world.server_id)
        return guest.name, guest.metadata

    def test_result(self) -> None:
        assert asyncio.run(self._run_without_faults()).outcome == ("new", {"a": "1"})


class TestDeferredUpdateMetadata(Variant, TestUpdateMetadata):
    _expected: ClassVar[Any] = None
    operation: ClassVar[type[Operation]] = DeferredUpdateMetadata

    async def begin(self, tx: Transaction, world: World) -> str:
        await tx.execute(CHANGE)
        return await begin_stored(tx, DeferredUpdateMetadata, {"guest_id": world.server_id})
