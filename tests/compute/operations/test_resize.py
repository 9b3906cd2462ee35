"""Resize and migrate, from their tables: each step twice, failed with nothing left behind, and killed."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from kilonova.compute.migrations.model import MIGRATION, RESIZE, params_of
from kilonova.compute.operations.resize import Migrate, Resize
from kilonova.compute.operations.stop import Stop
from kilonova.compute.servers.resizing import begin_resize
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations.worlds import MoveOperation, OnceMore, OnOneDatabase, World, carry_out

LARGER = {"name": "m1.small", "vcpus": 2, "ram": 2048, "disk": 20, "ephemeral": 0, "swap": 0, "extra_specs": {}}


class ColdMove(MoveOperation):
    """Counts with what only a resize changes, and with the disk, whose content is always the same."""

    __test__ = False

    async def census(self, db: Database, world: World) -> Any:
        sizes = await db.fetch_one("SELECT ram, disk_config, flavor FROM servers WHERE id = $1", world.server_id)
        found = await world.cloud.everything()
        return {
            **await super().census(db, world),
            "sizes": sizes,
            "machines": [(host, bool(state.slot), state.vcpus, state.ram_mb) for host, state in found],
            "disks": sorted({state.disk for _, state in found}),
        }

    async def outcome(self, db: Database, world: World) -> Any:
        """Hosts have lost their names, and so their order. The disk's is random; there is one, whatever was made."""
        document = orjson.loads(await super().outcome(db, world))
        return {**document, "machines": sorted(document["machines"]), "disks": len(document["disks"])}


async def resized(tx: Transaction, world: World, **more: Any) -> str:
    """As the API begins it; the id of the operation."""
    server = await tx.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
    assert server is not None
    params = params_of(flavor=LARGER, disk_config="MANUAL", **more)
    return await begin_resize(tx, server, "2", params, "member-id", "req-move")


class TestResize(ColdMove):
    __test__ = True
    operation: ClassVar[type[Operation]] = Resize
    move_type = RESIZE

    async def begin(self, tx: Transaction, world: World) -> str:
        return await resized(tx, world)


class TestResizeOnSameHost(OnOneDatabase, TestResize):
    _expected: ClassVar[Any] = None
    hosts = 1

    async def begin(self, tx: Transaction, world: World) -> str:
        return await resized(tx, world, same_host=True)


class TestResizeStopped(OnceMore, TestResize):
    _expected: ClassVar[Any] = None

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        await carry_out(db, world, Stop)


class TestMigrate(OnceMore, ColdMove):
    __test__ = True
    operation: ClassVar[type[Operation]] = Migrate
    move_type = MIGRATION
