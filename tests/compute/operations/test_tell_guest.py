"""Telling a guest of itself, at once or later: twice, failed, and killed."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from kilonova.compute.operations.tell_guest import TellGuest, TellGuestLater
from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.compute.operations.worlds import OnceMore, ServerOperation, World
from tests.compute.servers.support import guest_on
from tests.support.cloud import DEMO

CHANGE = """UPDATE servers SET name = 'new', metadata = '{"a":"1"}'"""


class TestTellGuest(ServerOperation):
    """It only goes forward: what a guest was told is what the record says."""

    __test__ = True
    operation: ClassVar[type[Operation]] = TellGuest
    hosts: ClassVar[int] = 1

    async def begin(self, tx: Transaction, world: World) -> str:
        await tx.execute(CHANGE)
        return await begin(tx, TellGuest, server_id=world.server_id, project_id=DEMO)

    async def outcome(self, db: Database, world: World) -> Any:
        guest = guest_on(world.cloud, "sim-001", world.server_id)
        return guest.name, guest.metadata

    def test_its_end(self) -> None:
        assert asyncio.run(self._undisturbed()).outcome == ("new", {"a": "1"})


class TestTellGuestLater(OnceMore, TestTellGuest):
    _expected: ClassVar[Any] = None
    operation: ClassVar[type[Operation]] = TellGuestLater

    async def begin(self, tx: Transaction, world: World) -> str:
        await tx.execute(CHANGE)
        return await begin(tx, TellGuestLater, params={"guest_id": world.server_id})
