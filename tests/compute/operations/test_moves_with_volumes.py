"""Moves of a server that boots from a volume and has another: each step twice, failed, killed, and watched."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.migrations.model import MIGRATION
from kilonova.compute.operations.offload import Offload
from kilonova.compute.operations.resize import Migrate
from kilonova.compute.operations.shelve import Shelve
from kilonova.compute.operations.stop import Stop
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
from tests.compute.operations.test_live_migrate import quick_pulse
from tests.compute.operations.volume_worlds import WithVolumes, census, sound
from tests.compute.operations.worlds import OnceMore, OnOneDatabase, World, carry_out
from tests.compute.servers.support import hypervisors

__all__ = ["quick_pulse"]


class Moving(WithVolumes):
    """At the end, good or bad, all volumes are in use on the server's host, or reserved where it has none."""

    async def outcome(self, db: Database, world: World) -> Any:
        told = await super().outcome(db, world)
        host = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        self.check(await census(db, world), host)
        return told

    def check(self, found: Any, host: str | None) -> None:
        sound(found, host)


class TestResize(Moving, test_resize.TestResize):
    _expected: ClassVar[Any] = None


class TestResizeOnSameHost(OnceMore, Moving, test_resize.TestResizeOnSameHost):
    _expected: ClassVar[Any] = None


class TestMigrateWithSharedVolume(OnceMore, Moving, test_resize.ColdMove):
    """Of which others have attachments too."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Migrate
    move_type = MIGRATION
    shared = True


class TestConfirmResize(OnceMore, Moving, test_confirm_resize.TestConfirmResize):
    """What is in a slot has volumes too, and goes first."""

    _expected: ClassVar[Any] = None

    async def census(self, db: Database, world: World) -> Any:
        whole = await super().census(db, world)
        for seen in whole["volumes"].values():
            seen["in guests"] = [(slot, host) for slot, host in seen["in guests"] if not slot]
        return whole


class TestRevertResize(OnOneDatabase, Moving, test_revert_resize.TestRevertResize):
    _expected: ClassVar[Any] = None


class TestRevertResizeOnSameHost(OnceMore, Moving, test_revert_resize.TestRevertResizeOnSameHost):
    _expected: ClassVar[Any] = None


class TestLiveMigrate(Moving, test_live_migrate.TestLiveMigrate):
    _expected: ClassVar[Any] = None


class TestEvacuate(OnOneDatabase, Moving, test_evacuate.TestEvacuate):
    _expected: ClassVar[Any] = None

    def lost(self, world: World) -> str:
        return world.source


class Shelving(OnOneDatabase, Moving, test_shelve.ShelvingOperation):
    __test__ = False

    async def make_server(self, db: Database, world: World) -> None:
        """Nobody asks how long shelved servers stay."""
        world.config.compute.shelved_offload_seconds = -1
        await self.boot_server(db, world)
        for operation in self.before:
            await carry_out(db, world, operation)


class TestShelve(Shelving):
    """It makes no image, and is on no host at the end."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Shelve

    async def outcome(self, db: Database, world: World) -> Any:
        told = await super().outcome(db, world)
        sql = "SELECT vm_state, shelved_image_id, host IS NULL AS nowhere FROM servers WHERE id = $1"
        state = await db.fetch_one(sql, world.server_id)
        assert state is not None
        shown = (state["vm_state"], state["shelved_image_id"], bool(state["nowhere"]))
        assert shown in (("shelved_offloaded", None, True), ("active", None, False))
        return told


class Shelved(Shelving):
    """As a shelving leaves it before the offload that it begins."""

    __test__ = False

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        await carry_out(db, world, Stop)
        async with db.transaction() as tx:
            sql = "UPDATE servers SET vm_state = 'shelved', shelved_at = created_at WHERE id = $1"
            await tx.execute(sql, world.server_id)


class TestOffload(Shelved):
    """It only goes forward: one that failed has left the server shelved on its host, its volumes perhaps parted."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Offload

    async def census(self, db: Database, world: World) -> Any:
        whole = await super().census(db, world)
        kept = ("server", "shares", "images", "left", "shelved_at", "shelved_image_id")
        placed = whole["server"]["host"] is not None
        return {key: value for key, value in whole.items() if not placed or key in kept}

    def check(self, found: Any, host: str | None) -> None:
        if host is None:
            sound(found, host)


class TestUnshelveInPlace(Shelved):
    __test__ = True
    operation: ClassVar[type[Operation]] = UnshelveInPlace
    params: ClassVar[dict[str, Any]] = {"host": None}


class TestUnshelveInPlaceParted(OnceMore, TestUnshelveInPlace):
    """An offload has come half way: the guest is gone and its volumes are reserved."""

    _expected: ClassVar[Any] = None

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        host = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        with hypervisors(world.cloud) as hosts:
            hosts.remove_guest(host, world.server_id)
        async with db.transaction() as tx:
            await tx.execute("UPDATE volumes SET status = 'reserved'")
            await tx.execute("UPDATE volume_attachments SET status = 'reserved', host = NULL, connection = NULL")
            await tx.execute("UPDATE block_devices SET connection = NULL")

    async def census(self, db: Database, world: World) -> Any:
        whole = await super().census(db, world)
        return {key: value for key, value in whole.items() if key not in ("guests", "volumes")}

    def check(self, found: Any, host: str | None) -> None:
        """Where it failed before it began, they are still parted."""
        if any(seen["attachments"] != [("reserved", None)] for seen in found.values()):
            sound(found, host)


class TestUnshelve(Shelving):
    __test__ = True
    operation: ClassVar[type[Operation]] = Unshelve
    params: ClassVar[dict[str, Any]] = {"host": None}
    before = (Shelve,)
