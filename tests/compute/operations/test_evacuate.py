"""Generated tests of evacuate."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from kilonova.compute.migrations.model import EVACUATION
from kilonova.compute.operations.evacuate import Evacuate
from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SIM_FILE_NAME, SimStore
from kilonova.operations import Operation
from kilonova.store import Database
from tests.compute.operations.worlds import MoveOperation, Variant, World


class TestEvacuate(MoveOperation):
    """The source is unreachable and keeps its guest."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Evacuate
    move_type: ClassVar[str] = EVACUATION
    params: ClassVar[dict[str, Any]] = {"start": True}

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        store = SimStore(Path(world.config.data) / SIM_FILE_NAME)
        world.stack.callback(store.close)
        Rules(store).add_failure(world.source, "destroy", "unreachable", None, None)
        async with db.transaction() as tx:
            await tx.execute("UPDATE services SET last_seen_at = 0 WHERE host = $1", world.source)
        return world

    async def list_resources(self, db: Database, world: World) -> Any:
        guests = [(host, guest.power) for host, guest in await world.cloud.list_guests_and_slots() if not guest.slot]
        return {
            **await super().list_resources(db, world),
            "guests": sorted(guests, key=lambda one: one[0] != world.source),
        }


class TestEvacuateStopped(Variant, TestEvacuate):
    """A server in error is stopped after a success, and in error again after a failure."""

    _expected: ClassVar[Any] = None
    params: ClassVar[dict[str, Any]] = {"start": False}

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        async with db.transaction() as tx:
            await tx.execute("UPDATE servers SET vm_state = 'error', power_state = 0 WHERE id = $1", world.server_id)
