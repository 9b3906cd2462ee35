"""Generated tests of unshelve."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.shelve import Offload, Shelve
from kilonova.compute.operations.unshelve import Unshelve, UnshelveInPlace
from kilonova.operations import Operation
from kilonova.store import Database
from tests.compute.operations.test_shelve import ShelvingOperation
from tests.compute.operations.worlds import OnOneDatabase, Variant, World
from tests.compute.servers.support import sim_store


class TestUnshelve(ShelvingOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Unshelve
    params: ClassVar[dict[str, Any]] = {"host": None}
    before = (Shelve, Offload)


class TestUnshelveToRequestedHost(Variant, TestUnshelve):
    """With a new pinned zone, which the server keeps only after a success."""

    _expected: ClassVar[Any] = None
    params: ClassVar[dict[str, Any]] = {"host": "sim-002", "zone": "nova"}


class TestUnshelveInPlace(ShelvingOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = UnshelveInPlace
    params: ClassVar[dict[str, Any]] = {"host": None}
    before = (Shelve,)


class TestUnshelveInPlaceWithoutGuest(OnOneDatabase, TestUnshelveInPlace):
    """An offload failed after it destroyed the guest. A failed unshelve leaves a stopped guest."""

    _expected: ClassVar[Any] = None

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        host = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        with sim_store(world.cloud) as hosts:
            hosts.remove_guest(host, world.server_id)
        async with db.transaction() as tx:
            await tx.execute("UPDATE ports SET host_id = '' WHERE device_id = $1", world.server_id)

    async def list_resources(self, db: Database, world: World) -> Any:
        whole = await super().list_resources(db, world)
        return {key: value for key, value in whole.items() if key not in ("guests", "ports")}

    async def outcome(self, db: Database, world: World) -> Any:
        ports = await db.fetch_value("SELECT COUNT(*) FROM ports WHERE host_id = ''")
        return await super().outcome(db, world), ports, [power for _, power in (await world.cloud.guests()).values()]
