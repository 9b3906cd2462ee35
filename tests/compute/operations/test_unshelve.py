"""Unshelving, generated: each step twice, failed with nothing left behind, and killed."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.offload import Offload
from kilonova.compute.operations.shelve import Shelve
from kilonova.compute.operations.unshelve import Unshelve, UnshelveInPlace
from kilonova.operations import Operation
from kilonova.store import Database
from tests.compute.operations.test_shelve import ShelvingOperation
from tests.compute.operations.worlds import OnceMore, OnOneDatabase, World
from tests.compute.servers.support import hypervisors


class TestUnshelve(ShelvingOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Unshelve
    params: ClassVar[dict[str, Any]] = {"host": None}
    before = (Shelve, Offload)


class TestUnshelveAsAsked(OnceMore, TestUnshelve):
    """To a host, and with a new pin, which a server keeps only where it arrives."""

    _expected: ClassVar[Any] = None
    params: ClassVar[dict[str, Any]] = {"host": "sim-002", "zone": "nova"}


class TestUnshelveInPlace(ShelvingOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = UnshelveInPlace
    params: ClassVar[dict[str, Any]] = {"host": None}
    before = (Shelve,)


class TestUnshelveInPlaceWithoutGuest(OnOneDatabase, TestUnshelveInPlace):
    """An offload has come half way: the guest is gone. What a failure leaves then is a guest that stands still."""

    _expected: ClassVar[Any] = None

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        host = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        with hypervisors(world.cloud) as hosts:
            hosts.remove_guest(host, world.server_id)
        async with db.transaction() as tx:
            await tx.execute("UPDATE ports SET host_id = '' WHERE device_id = $1", world.server_id)

    async def census(self, db: Database, world: World) -> Any:
        whole = await super().census(db, world)
        return {key: value for key, value in whole.items() if key not in ("guests", "ports")}

    async def outcome(self, db: Database, world: World) -> Any:
        ports = await db.fetch_value("SELECT COUNT(*) FROM ports WHERE host_id = ''")
        return await super().outcome(db, world), ports, [power for _, power in (await world.cloud.guests()).values()]
