"""Pausing, suspending, rescuing, deleting for a while and the like: each step twice, failed, and killed."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.boot import Boot
from kilonova.compute.operations.change_password import ChangePassword
from kilonova.compute.operations.crash_dump import TriggerCrashDump
from kilonova.compute.operations.create_backup import CreateBackup
from kilonova.compute.operations.pause import Pause
from kilonova.compute.operations.rescue import Rescue
from kilonova.compute.operations.reset_state import ResetState
from kilonova.compute.operations.restore import Restore
from kilonova.compute.operations.resume import Resume
from kilonova.compute.operations.shelve import Shelve
from kilonova.compute.operations.soft_delete import SoftDelete
from kilonova.compute.operations.stop import Stop
from kilonova.compute.operations.suspend import Suspend
from kilonova.compute.operations.unpause import Unpause
from kilonova.compute.operations.unrescue import Unrescue
from kilonova.operations import Operation
from kilonova.store import Database
from tests.compute.operations.worlds import OnceMore, ServerOperation, World, carry_out, put_building
from tests.compute.servers.support import hypervisors

SECRET = "correct horse"
AGREE = (("paused", ["paused"]), ("stopped", ["shutdown"]), ("shelved", ["shutdown"]))
Before = tuple[tuple[type[Operation], dict[str, Any]], ...]


class Halting(ServerOperation):
    """Counts with rescues, and with what was left behind for hosts to do."""

    before: ClassVar[Before] = ()
    hosts = 1

    async def make_server(self, db: Database, world: World) -> None:
        await put_building(db, world.server_id, image_id=world.cloud.image_id, name="s")
        await carry_out(db, world, Boot, networks=[], security_groups=[], destination=None)
        for operation, params in self.before:
            await carry_out(db, world, operation, **params)
        failures = await db.fetch("SELECT kind, error FROM operations WHERE state <> 'done'")
        assert not failures

    async def census(self, db: Database, world: World) -> Any:
        with hypervisors(world.cloud) as sim:
            (host,) = sim.hosts()
            rescue = sim.rescue(host, world.server_id)
        kept = await db.fetch("SELECT params FROM operations WHERE finished_at IS NOT NULL")
        left = "SELECT kind FROM operations WHERE server_id IS NULL AND kind <> 'drop image'"
        return {
            **await super().census(db, world),
            "rescue": rescue,
            "left": await db.fetch(left),
            "told": [row for row in kept if SECRET in row["params"]],
            "images": await db.fetch("SELECT name, status FROM images WHERE status <> 'deleted' ORDER BY 1"),
        }


class TestPause(Halting):
    __test__ = True
    operation: ClassVar[type[Operation]] = Pause


class TestUnpause(Halting):
    __test__ = True
    operation: ClassVar[type[Operation]] = Unpause
    before: ClassVar[Before] = ((Pause, {}),)


class TestSuspend(Halting):
    __test__ = True
    operation: ClassVar[type[Operation]] = Suspend


class TestResume(Halting):
    __test__ = True
    operation: ClassVar[type[Operation]] = Resume
    before: ClassVar[Before] = ((Suspend, {}),)


class TestRescue(Halting):
    __test__ = True
    operation: ClassVar[type[Operation]] = Rescue
    params: ClassVar[dict[str, Any]] = {"password": SECRET, "image": None}


class TestRescueOfAStoppedServer(OnceMore, TestRescue):
    _expected: ClassVar[Any] = None
    before: ClassVar[Before] = ((Stop, {}),)


class TestUnrescue(Halting):
    """What was unrescued stays so, and is unrescued when somebody asks again."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Unrescue
    before: ClassVar[Before] = ((Rescue, {"password": SECRET, "image": None}),)

    async def census(self, db: Database, world: World) -> Any:
        return {**await super().census(db, world), "rescue": ...}


class TestChangePassword(Halting):
    __test__ = True
    operation: ClassVar[type[Operation]] = ChangePassword
    params: ClassVar[dict[str, Any]] = {"password": SECRET}


class TestTriggerCrashDump(Halting):
    __test__ = True
    operation: ClassVar[type[Operation]] = TriggerCrashDump


class TestSoftDelete(Halting):
    __test__ = True
    operation: ClassVar[type[Operation]] = SoftDelete

    def state(self, server: dict[str, Any]) -> dict[str, Any]:
        return {**super().state(server), "since": server["soft_deleted_at"] is not None}


class TestRestore(TestSoftDelete):
    _expected: ClassVar[Any] = None
    operation: ClassVar[type[Operation]] = Restore
    before: ClassVar[Before] = ((SoftDelete, {}),)


class TestRestoreOfARescuedServer(OnceMore, TestRestore):
    _expected: ClassVar[Any] = None
    params: ClassVar[dict[str, Any]] = {"rescued": True}
    before: ClassVar[Before] = ((Rescue, {"password": SECRET, "image": None}), (SoftDelete, {}))

    async def census(self, db: Database, world: World) -> Any:
        """Whatever becomes of the restore, the server is not in rescue any more."""
        return {**await super().census(db, world), "rescue": ...}


class TestResetState(Halting):
    __test__ = True
    operation: ClassVar[type[Operation]] = ResetState
    params: ClassVar[dict[str, Any]] = {"state": "error"}


class TestCreateBackup(Halting):
    """The one before goes in the end, and only then."""

    __test__ = True
    operation: ClassVar[type[Operation]] = CreateBackup
    params: ClassVar[dict[str, Any]] = {
        "name": "new",
        "metadata": {"image_type": "backup", "backup_type": "daily"},
        "type": "daily",
        "rotation": 1,
    }
    before: ClassVar[Before] = ((CreateBackup, {**params, "name": "old"}),)

    async def outcome(self, db: Database, world: World) -> Any:
        """That it goes is left to be done; by whom and when, is another's test."""
        orders = await db.fetch_value("SELECT COUNT(*) FROM operations WHERE kind = 'drop image'")
        return {**await self.census(db, world), "images": ..., "orders": orders}


class TestShelveOfAPausedServer(OnceMore, Halting):
    """Its memory is lost with the first step, so that a failure leaves a stopped server."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Shelve
    before: ClassVar[Before] = ((Pause, {}),)

    async def make_server(self, db: Database, world: World) -> None:
        world.config.compute.shelved_offload_seconds = -1
        await super().make_server(db, world)

    async def census(self, db: Database, world: World) -> Any:
        found = await super().census(db, world)
        assert (found["vm_state"], found["guests"]) in AGREE
        halted = found["vm_state"] in ("paused", "stopped")
        return {**found, "guests": len(found["guests"]), "vm_state": halted, "power_state": ...}

    async def outcome(self, db: Database, world: World) -> Any:
        return await super().census(db, world)
