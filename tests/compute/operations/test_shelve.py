"""Generated tests of shelve and offload."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from kilonova.compute.operations.shelve import Offload, Shelve
from kilonova.compute.operations.suspend import Pause
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations.support import finish_operations
from tests.compute.operations.worlds import (
    GuestOperation,
    MoveOperation,
    Operations,
    ServerOperation,
    Variant,
    World,
    begin_boot,
    put_building_server,
    run_operation,
)
from tests.support.full_cloud import running_worker

FORMATS = orjson.dumps({"disk_format": "raw", "container_format": "bare", "hw_rng_model": "virtio"}).decode()
MATCHING_STATES = (("paused", ["paused"]), ("stopped", ["shutdown"]), ("shelved", ["shutdown"]))


class ShelvingOperation(MoveOperation):
    """A server without automatic offload. The outcome hides its host. `before`: operations that run first."""

    __test__ = False
    before: ClassVar[tuple[type[Operation], ...]] = ()

    async def make_server(self, db: Database, world: World) -> None:
        world.config.compute.shelved_offload_seconds = -1
        await put_building_server(db, world.server_id, image_id=world.cloud.image_id, image_properties=FORMATS)
        async with db.transaction() as tx:
            await begin_boot(tx, world)
        async with running_worker(db, world):
            await world.cloud.wait_until_settled(world.server_id)
        for operation in self.before:
            await run_operation(db, world, operation)

    async def begin(self, tx: Transaction, world: World) -> str:
        return await ServerOperation.begin(self, tx, world)

    async def list_resources(self, db: Database, world: World) -> Any:
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        shelved = {name: server[name] is not None for name in ("shelved_at", "shelved_image_id")}
        return {**await super().list_resources(db, world), **shelved, "pin": server["pinned_zone"]}

    async def outcome(self, db: Database, world: World) -> Any:
        async with running_worker(db, world):  # the operations that the last step began
            await finish_operations(world.cloud)
        text = orjson.dumps(await self.list_resources(db, world)).decode()
        return text.replace("sim-001", "host").replace("sim-002", "host")


class TestShelve(ShelvingOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Shelve


class TestShelvePaused(Variant, GuestOperation):
    """The first step loses the guest's memory, so a failure leaves the server stopped."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Shelve
    before: ClassVar[Operations] = ((Pause, {}),)

    async def make_server(self, db: Database, world: World) -> None:
        world.config.compute.shelved_offload_seconds = -1
        await super().make_server(db, world)

    async def list_resources(self, db: Database, world: World) -> Any:
        found = await super().list_resources(db, world)
        assert (found["vm_state"], found["guests"]) in MATCHING_STATES
        is_halted = found["vm_state"] in ("paused", "stopped")
        return {**found, "guests": len(found["guests"]), "vm_state": is_halted, "power_state": ...}

    async def outcome(self, db: Database, world: World) -> Any:
        return await super().list_resources(db, world)


class TestOffload(ShelvingOperation):
    """Offload has no undo: a failed offload leaves the server shelved, with its allocation and image."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Offload
    before = (Shelve,)

    async def list_resources(self, db: Database, world: World) -> Any:
        whole = await super().list_resources(db, world)
        return {
            key: whole[key] for key in ("server", "allocations", "images", "deferred", "shelved_at", "shelved_image_id")
        }

    async def outcome(self, db: Database, world: World) -> Any:
        ports = await db.fetch("SELECT host_id FROM ports WHERE device_id = $1", world.server_id)
        return await super().outcome(db, world), ports, await world.cloud.guests()
