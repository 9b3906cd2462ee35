"""Generated tests of resize and migrate."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from kilonova.compute.migrations.model import MIGRATION, RESIZE
from kilonova.compute.operations.power import Stop
from kilonova.compute.operations.resize import Migrate, Resize, ResizeParams
from kilonova.compute.servers.actions.resize import begin_resize
from kilonova.compute.servers.server import EmbeddedFlavor, Server
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations.worlds import MoveOperation, OnOneDatabase, Variant, World, run_operation

LARGER = EmbeddedFlavor(name="m1.small", vcpus=2, ram=2048, disk=20, ephemeral=0, swap=0, extra_specs={})


class ColdMove(MoveOperation):
    """Resources with the flavor and the disk. A move never changes the disk's content."""

    __test__ = False

    async def list_resources(self, db: Database, world: World) -> Any:
        sizes = await db.fetch_one("SELECT ram, disk_config, flavor FROM servers WHERE id = $1", world.server_id)
        found = await world.cloud.list_guests_and_slots()
        return {
            **await super().list_resources(db, world),
            "sizes": sizes,
            "guests and slots": [(host, bool(state.slot), state.vcpus, state.ram_mb) for host, state in found],
            "disks": sorted({state.disk for _, state in found}),
        }

    async def outcome(self, db: Database, world: World) -> Any:
        """Sorted again, since hosts are renamed. The disk's name is random, so the disks are counted."""
        document = orjson.loads(await super().outcome(db, world))
        return {**document, "guests and slots": sorted(document["guests and slots"]), "disks": len(document["disks"])}


async def begin_larger_resize(tx: Transaction, world: World, **more: Any) -> str:
    """Begin a resize to a larger flavor, as the API does. Returns the operation's id."""
    server = Server.decode_optional(await tx.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id))
    assert server is not None
    params = ResizeParams(flavor=LARGER, disk_config="MANUAL", **more)
    return await begin_resize(tx, server, "2", params, "member-id", "req-move")


class TestResize(ColdMove):
    __test__ = True
    operation: ClassVar[type[Operation]] = Resize
    move_type = RESIZE

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin_larger_resize(tx, world)


class TestResizeOnSameHost(OnOneDatabase, TestResize):
    _expected: ClassVar[Any] = None
    hosts = 1

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin_larger_resize(tx, world, same_host=True)


class TestResizeStopped(Variant, TestResize):
    _expected: ClassVar[Any] = None

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        await run_operation(db, world, Stop)


class TestMigrate(Variant, ColdMove):
    __test__ = True
    operation: ClassVar[type[Operation]] = Migrate
    move_type = MIGRATION
