"""Telling a guest of itself: twice, failed, and killed."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from kilonova.compute.operations.tell_guest import TellGuest
from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.compute.operations.worlds import ServerOperation, World
from tests.compute.servers.support import guest_on


class TestTellGuest(ServerOperation):
    """It only goes forward: what a guest was told is what the record says."""

    __test__ = True
    operation: ClassVar[type[Operation]] = TellGuest
    hosts: ClassVar[int] = 1

    async def begin(self, tx: Transaction, world: World) -> str:
        await tx.execute("""UPDATE servers SET name = 'new', metadata = '{"a":"1"}'""")
        return await begin(tx, TellGuest, params={"guest_id": world.server_id})

    async def outcome(self, db: Database, world: World) -> Any:
        guest = guest_on(world.cloud, "sim-001", world.server_id)
        return guest.name, guest.metadata

    def test_its_end(self) -> None:
        assert asyncio.run(self._undisturbed()).outcome == ("new", {"a": "1"})
