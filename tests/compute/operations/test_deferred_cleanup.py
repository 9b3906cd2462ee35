"""Tests of deferred cleanup: it is idempotent, and does nothing that the server no longer needs."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from kilonova.compute.operations.deferred_cleanup import (
    CleanUpGuest,
    CleanUpSlot,
    DeleteImage,
    ParkGuest,
    RestoreDisk,
    RestoreGuest,
)
from kilonova.hosts.messages import Command
from kilonova.hosts.messages.verbs import Park, PowerOff, Unpark
from kilonova.ids import new_id
from kilonova.operations import Operation
from kilonova.operations.testing import Fault, Injection
from kilonova.store import Database, Transaction, open_database
from tests.compute.operations import test_resize, test_revert_resize
from tests.compute.operations.attachment_worlds import VolumeOperation
from tests.compute.operations.support import begin_stored, finish_operations
from tests.compute.operations.test_confirm_resize import ResizedServer
from tests.compute.operations.worlds import OnOneDatabase, ServerOperation, World
from tests.compute.servers.actions.test_resize import boot_resized, confirm
from tests.compute.servers.moves import HOST, run_move
from tests.compute.servers.support import guest_on, rules, sim_store, unreachable_after
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud, running_worker

ONLY_HOST = "sim-001"


class TestCleanUpGuest(ServerOperation):
    """CleanUpGuest has no undo: no server needs the guest."""

    __test__ = True
    operation: ClassVar[type[Operation]] = CleanUpGuest
    slot: ClassVar[str | None] = None

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        world.source = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        """The server's row names another host than the one with the guest."""
        await tx.execute("UPDATE servers SET host = 'elsewhere' WHERE id = $1", world.server_id)
        boot = await tx.fetch_one("SELECT id, round, epoch FROM operations WHERE kind = 'boot'")
        assert boot is not None
        command = {"operation": boot["id"], "round": boot["round"], "epoch": boot["epoch"] + 1}
        params = {"guest_id": world.server_id, "host": world.source, "slot": self.slot, **command}
        return await begin_stored(tx, self.operation, params)

    async def list_resources(self, db: Database, world: World) -> Any:
        return await db.fetch("SELECT resource_class, used FROM allocations ORDER BY 1")

    async def outcome(self, db: Database, world: World) -> Any:
        return await world.cloud.guests(), await world.cloud.list_slots()


class TestCleanUpSlot(TestCleanUpGuest):
    """The guest is parked in a slot."""

    operation: ClassVar[type[Operation]] = CleanUpSlot
    slot: ClassVar[str | None] = "slot"
    _expected: ClassVar[Any] = None

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        host = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        verb = Park(guest_id=world.server_id, slot="slot")
        await world.hosts.call(host, Command(host=host, operation="earlier", step="park", epoch=1, verb=verb))
        assert len(await world.cloud.list_slots()) == 1


async def call_host(c: FullCloud, host: str, *verbs: Any) -> None:
    """Change the guest as an earlier operation would."""
    operation = new_id()
    for verb in verbs:
        await c.hosts.call(host, Command(host=host, operation=operation, step="before", round=1, epoch=1, verb=verb))


async def defer(tx: Transaction, kind: type[Operation], server_id: str, host: str, **params: Any) -> str:
    """Begin a deferred operation with the fence of the server's newest operation."""
    origin = await tx.fetch_one(
        "SELECT id, round, epoch FROM operations WHERE server_id = $1 ORDER BY seq DESC LIMIT 1", server_id
    )
    assert origin is not None
    fence = {"operation": origin["id"], "round": origin["round"], "epoch": origin["epoch"] + 1}
    return await begin_stored(tx, kind, {"guest_id": server_id, "host": host, **fence, **params}, host=host)


class DeferredOperation(ServerOperation):
    """Has no undo, and changes only the guest. `result`: whether each guest is in a slot, and its power state."""

    __test__ = False
    result: ClassVar[list[tuple[bool, str]]]

    async def list_resources(self, db: Database, world: World) -> Any:
        return await db.fetch("SELECT resource_class, used FROM allocations ORDER BY 1")

    async def outcome(self, db: Database, world: World) -> Any:
        return sorted((bool(state.slot), state.power) for _, state in await world.cloud.list_guests_and_slots())

    def test_result(self) -> None:
        assert run(self._run_without_faults()).outcome == self.result


class TestRestoreGuest(DeferredOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = RestoreGuest
    result: ClassVar[list[tuple[bool, str]]] = [(False, "running")]

    async def begin(self, tx: Transaction, world: World) -> str:
        host = await tx.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        server_id, slot = world.server_id, "slot"
        if not await world.cloud.list_slots():  # otherwise an earlier, failed operation has parked the guest
            await call_host(world.cloud, host, PowerOff(guest_id=server_id), Park(guest_id=server_id, slot=slot))
        return await defer(tx, RestoreGuest, server_id, host, slot=slot, running=True, aside=None)


class TestParkGuest(DeferredOperation, ResizedServer):
    __test__ = True
    operation: ClassVar[type[Operation]] = ParkGuest
    result: ClassVar[list[tuple[bool, str]]] = [(False, "running"), (True, "shutdown")]

    async def begin(self, tx: Transaction, world: World) -> str:
        slot = await tx.fetch_value("SELECT operation_id FROM moves")
        await call_host(world.cloud, world.source, Unpark(guest_id=world.server_id, slot=slot, start=True))
        return await defer(tx, ParkGuest, world.server_id, world.source, slot=slot)


class TestRestoreDisk(VolumeOperation):
    """RestoreDisk has no undo. `in_devices`: whether the server's block devices have the volume."""

    __test__ = True
    operation: ClassVar[type[Operation]] = RestoreDisk
    in_devices: ClassVar[bool] = True

    async def begin(self, tx: Transaction, world: World) -> str:
        origin = await tx.fetch_one("SELECT id, round, epoch FROM operations WHERE kind = 'attach_volume'")
        assert origin is not None
        if not self.in_devices:
            await tx.execute("DELETE FROM block_devices")
        fence = {"operation": origin["id"], "round": origin["round"], "epoch": origin["epoch"] + 1}
        params = {"guest_id": world.server_id, "host": ONLY_HOST, "volume_id": self.volumes["data"], "other": None}
        return await begin_stored(tx, RestoreDisk, {**params, **fence})

    async def list_resources(self, db: Database, world: World) -> Any:
        return None

    async def outcome(self, db: Database, world: World) -> Any:
        return await VolumeOperation.list_resources(self, db, world)

    def check_result(self, seen: Any) -> None:
        data = seen["volumes"]["data"]
        assert data["status"] == ("in-use" if self.in_devices else "available")
        assert bool(data["attachments"]) == bool(data["in guests"]) == self.in_devices


class TestRestoreDiskDetaches(OnOneDatabase, TestRestoreDisk):
    """The volume is detached from the guest and released."""

    _expected: ClassVar[Any] = None
    in_devices = False


class TestDeleteImage(ServerOperation):
    """DeleteImage has no undo: no server needs the image."""

    __test__ = True
    operation: ClassVar[type[Operation]] = DeleteImage

    async def make_server(self, db: Database, world: World) -> None:
        """Create an image; no server is needed."""
        self.image_id = new_id()
        token = await world.identity.token()
        await world.image.create({"id": self.image_id, "disk_format": "raw", "container_format": "bare"}, token)

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin_stored(tx, DeleteImage, {"image_id": self.image_id})

    async def list_resources(self, db: Database, world: World) -> Any:
        return None

    async def outcome(self, db: Database, world: World) -> Any:
        return await db.fetch_value("SELECT COUNT(*) FROM images WHERE id = $1", self.image_id)


def test_restore_guest_keeps_slot_of_successful_resize(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server, _ = await boot_resized(c)
            before = await c.list_guests_and_slots()
            slot = await c.db.fetch_value("SELECT operation_id FROM moves")
            async with c.db.transaction() as tx:
                await defer(tx, RestoreGuest, server["id"], server[HOST], slot=slot, running=True, aside=None)
                await defer(tx, RestoreGuest, server["id"], server[HOST], slot=None, running=True, aside=None)
            await finish_operations(c)
            assert await c.list_guests_and_slots() == before

    run(scenario())


@pytest.mark.parametrize("kind", [RestoreGuest, ParkGuest])
def test_deferred_operation_ignores_server_that_moved_back(database_url: str, kind: type[Operation]) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server, _ = await boot_resized(c)
            await confirm(c, server["id"])
            slot = new_id()
            async with c.db.transaction() as tx:
                deferred = await defer(tx, kind, server["id"], server[HOST], slot=slot, running=True)
                await tx.execute("UPDATE operations SET run_at = 1e12 WHERE id = $1", deferred)
            await run_move(c, server["id"], "migrate", {"host": server[HOST]})
            await confirm(c, server["id"])
            before = await c.list_guests_and_slots()
            with sim_store(c) as store:
                store.prepare_slot(server[HOST], guest_on(c, server[HOST], server["id"]), slot)
            await finish_operations(c)
            assert [(host, state) for host, state in await c.list_guests_and_slots() if not state.slot] == before
            # RestoreGuest discards a slot that no server needs. ParkGuest does not touch it.
            assert len(await c.list_slots()) == (kind is ParkGuest)

    run(scenario())


@pytest.mark.parametrize("revert", [False, True])
def test_killed_undo_keeps_deferred_restore_valid(sqlite_url: str, revert: bool) -> None:
    """A later command of the origin operation would make the host refuse the deferred one."""
    tests: Any = test_revert_resize.TestRevertResize() if revert else test_resize.TestMigrate()
    last_step = "hand back" if revert else "hand over"
    kills = [Fault("kill", "undo", point, frozenset({"stop guest"})) for point in ("before", "after")]

    async def scenario() -> None:
        db = await open_database(sqlite_url)
        world = await tests.prepare(db)
        before = await tests.list_resources(db, world)
        world.config.operations.host_timeout_seconds = 0.1
        host = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        with rules(world.cloud) as sim:
            rule = sim.add_failure(host, "unpark", "unreachable", None, None)
            faults = Injection(
                tests.operation.kind, [Fault("fail", "forward", "before", frozenset({last_step})), *kills]
            )
            async with db.transaction() as tx:
                operation_id = await tests.begin(tx, world)
            async with unreachable_after(sim, host, rule):
                row = await tests._run_workers(db, world, operation_id, faults)
            assert row.state == "failed"
            assert (await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL")) == [
                {"kind": "restore_guest"}
            ]
            sim.clear()
        async with running_worker(db, world):
            await finish_operations(world.cloud)
        assert await tests.list_resources(db, world) == before
        await tests.tear_down(world)
        await db.close()

    run(scenario())
