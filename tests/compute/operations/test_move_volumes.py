"""Generated tests of moves of a server with volumes, with one writer per volume at every step."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.migrations.model import MIGRATION
from kilonova.compute.operations.power import Stop
from kilonova.compute.operations.resize import Migrate
from kilonova.compute.operations.shelve import Offload, Shelve
from kilonova.compute.operations.unshelve import Unshelve, UnshelveInPlace
from kilonova.operations import Operation
from kilonova.store import Database
from tests.compute.operations import (
    test_confirm_resize,
    test_evacuate,
    test_live_migrate,
    test_resize,
    test_revert_resize,
    test_shelve,
)
from tests.compute.operations.test_live_migrate import short_progress_interval
from tests.compute.operations.volume_worlds import WithVolumes, check_attachments, list_resources
from tests.compute.operations.worlds import OnOneDatabase, Variant, World, run_operation
from tests.compute.servers.support import sim_store

__all__ = ["short_progress_interval"]


class MoveWithVolumes(WithVolumes):
    """After success or failure all volumes are in use on the server's host, or reserved if it has none."""

    async def outcome(self, db: Database, world: World) -> Any:
        outcome = await super().outcome(db, world)
        host = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        self.check(await list_resources(db, world), host)
        return outcome

    def check(self, found: Any, host: str | None) -> None:
        check_attachments(found, host)


class TestResize(MoveWithVolumes, test_resize.TestResize):
    _expected: ClassVar[Any] = None


class TestResizeOnSameHost(Variant, MoveWithVolumes, test_resize.TestResizeOnSameHost):
    _expected: ClassVar[Any] = None


class TestMigrateWithSharedVolume(Variant, MoveWithVolumes, test_resize.ColdMove):
    """The data volume is multi-attach."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Migrate
    move_type = MIGRATION
    shared = True


class TestConfirmResize(Variant, MoveWithVolumes, test_confirm_resize.TestConfirmResize):
    """A parked guest has volumes too; a failed confirmation may have discarded it."""

    _expected: ClassVar[Any] = None

    async def list_resources(self, db: Database, world: World) -> Any:
        whole = await super().list_resources(db, world)
        for seen in whole["volumes"].values():
            seen["in guests"] = [(slot, host) for slot, host in seen["in guests"] if not slot]
        return whole


class TestRevertResize(OnOneDatabase, MoveWithVolumes, test_revert_resize.TestRevertResize):
    _expected: ClassVar[Any] = None


class TestRevertResizeOnSameHost(Variant, MoveWithVolumes, test_revert_resize.TestRevertResizeOnSameHost):
    _expected: ClassVar[Any] = None


class TestLiveMigrate(MoveWithVolumes, test_live_migrate.TestLiveMigrate):
    _expected: ClassVar[Any] = None


class TestEvacuate(OnOneDatabase, MoveWithVolumes, test_evacuate.TestEvacuate):
    _expected: ClassVar[Any] = None

    def unreachable_host(self, world: World) -> str:
        return world.source


class ShelvingWithVolumes(OnOneDatabase, MoveWithVolumes, test_shelve.ShelvingOperation):
    __test__ = False

    async def make_server(self, db: Database, world: World) -> None:
        """Without automatic offload."""
        world.config.compute.shelved_offload_seconds = -1
        await self.boot_server(db, world)
        for operation in self.before:
            await run_operation(db, world, operation)


class TestShelve(ShelvingWithVolumes):
    """A server that boots from a volume needs no image and is offloaded at once."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Shelve

    async def outcome(self, db: Database, world: World) -> Any:
        outcome = await super().outcome(db, world)
        sql = "SELECT vm_state, shelved_image_id, host IS NULL AS offloaded FROM servers WHERE id = $1"
        state = await db.fetch_one(sql, world.server_id)
        assert state is not None
        shown = (state["vm_state"], state["shelved_image_id"], bool(state["offloaded"]))
        assert shown in (("shelved_offloaded", None, True), ("active", None, False))
        return outcome


class ShelvedServer(ShelvingWithVolumes):
    """A server between shelve and offload."""

    __test__ = False

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        await run_operation(db, world, Stop)
        async with db.transaction() as tx:
            sql = "UPDATE servers SET vm_state = 'shelved', shelved_at = created_at WHERE id = $1"
            await tx.execute(sql, world.server_id)


class TestOffload(ShelvedServer):
    """Offload has no undo: a failed offload leaves the server shelved on its host; its volumes may be disconnected."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Offload

    async def list_resources(self, db: Database, world: World) -> Any:
        whole = await super().list_resources(db, world)
        stable = ("server", "allocations", "images", "deferred", "shelved_at", "shelved_image_id")
        placed = whole["server"]["host"] is not None
        return {key: value for key, value in whole.items() if not placed or key in stable}

    def check(self, found: Any, host: str | None) -> None:
        if host is None:
            check_attachments(found, host)


class TestUnshelveInPlace(ShelvedServer):
    __test__ = True
    operation: ClassVar[type[Operation]] = UnshelveInPlace
    params: ClassVar[dict[str, Any]] = {"host": None}


class TestUnshelveInPlaceDisconnected(Variant, TestUnshelveInPlace):
    """An offload failed after it destroyed the guest and disconnected its volumes."""

    _expected: ClassVar[Any] = None

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        host = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        with sim_store(world.cloud) as hosts:
            hosts.remove_guest(host, world.server_id)
        async with db.transaction() as tx:
            await tx.execute("UPDATE volumes SET status = 'reserved'")
            await tx.execute("UPDATE volume_attachments SET status = 'reserved', host = NULL, connection = NULL")
            await tx.execute("UPDATE block_devices SET connection = NULL")

    async def list_resources(self, db: Database, world: World) -> Any:
        whole = await super().list_resources(db, world)
        return {key: value for key, value in whole.items() if key not in ("guests", "volumes")}

    def check(self, found: Any, host: str | None) -> None:
        """An early failure leaves the volumes disconnected."""
        if any(seen["attachments"] != [("reserved", None)] for seen in found.values()):
            check_attachments(found, host)


class TestUnshelve(ShelvingWithVolumes):
    __test__ = True
    operation: ClassVar[type[Operation]] = Unshelve
    params: ClassVar[dict[str, Any]] = {"host": None}
    before = (Shelve,)
