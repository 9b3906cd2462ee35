"""What is left to hosts that were silent: done as often as need be, and not where it is no longer wanted."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from kilonova.compute.operations.leftovers import ParkGuest, RestoreGuest
from kilonova.hosts.messages import Command, Park, PowerOff, Unpark
from kilonova.ids import new_id
from kilonova.operations import Operation, begin
from kilonova.operations.testing import Fault, Injection
from kilonova.store import Database, Transaction, open_database
from tests.compute.operations import test_resize, test_revert_resize
from tests.compute.operations.test_confirm_resize import ResizedServer
from tests.compute.operations.test_silence import all_done
from tests.compute.operations.worlds import ServerOperation, World
from tests.compute.servers.moves import HOST, moved
from tests.compute.servers.support import guest_on, hypervisors, rules, silent_from
from tests.compute.servers.test_resizing import confirm, resized
from tests.support import run
from tests.support.whole import Whole, whole, working


async def change(c: Whole, host: str, *verbs: Any) -> None:
    """What an operation did on the host before it was lost."""
    operation = new_id()
    for verb in verbs:
        await c.hosts.call(host, Command(host=host, operation=operation, step="before", round=1, epoch=1, verb=verb))


async def leave(tx: Transaction, kind: type[Operation], server_id: str, host: str, **params: Any) -> str:
    """As the newest operation of the server would."""
    found = await tx.fetch_one(
        "SELECT id, round, epoch FROM operations WHERE server_id = $1 ORDER BY seq DESC LIMIT 1", server_id
    )
    assert found is not None
    fence = {"operation": found["id"], "round": found["round"], "epoch": found["epoch"] + 1}
    return await begin(tx, kind, params={"guest_id": server_id, "host": host, **fence, **params}, host=host)


class Leftover(ServerOperation):
    """They only go forward, and change nothing but the guest."""

    __test__ = False
    end: ClassVar[list[tuple[bool, str]]]

    async def census(self, db: Database, world: World) -> Any:
        return await db.fetch("SELECT resource_class, used FROM allocations ORDER BY 1")

    async def outcome(self, db: Database, world: World) -> Any:
        """Who is in a slot, and who runs."""
        return sorted((bool(state.slot), state.power) for _, state in await world.cloud.everything())

    def test_the_end(self) -> None:
        assert run(self._undisturbed()).outcome == self.end


class TestRestoreGuest(Leftover):
    __test__ = True
    operation: ClassVar[type[Operation]] = RestoreGuest
    end: ClassVar[list[tuple[bool, str]]] = [(False, "running")]

    async def begin(self, tx: Transaction, world: World) -> str:
        host = await tx.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        server_id, slot = world.server_id, "aside"
        if not await world.cloud.kept():  # else an earlier operation failed before it restored the guest
            await change(world.cloud, host, PowerOff(guest_id=server_id), Park(guest_id=server_id, slot=slot))
        return await leave(tx, RestoreGuest, server_id, host, slot=slot, running=True, aside=None)


class TestParkGuest(Leftover, ResizedServer):
    __test__ = True
    operation: ClassVar[type[Operation]] = ParkGuest
    end: ClassVar[list[tuple[bool, str]]] = [(False, "running"), (True, "shutdown")]

    async def begin(self, tx: Transaction, world: World) -> str:
        slot = await tx.fetch_value("SELECT operation_id FROM moves")
        await change(world.cloud, world.source, Unpark(guest_id=world.server_id, slot=slot, start=True))
        return await leave(tx, ParkGuest, world.server_id, world.source, slot=slot)


def test_nothing_is_taken_out_of_the_slot_of_a_resize_that_succeeded_after_all(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server, _ = await resized(c)
            before = await c.everything()
            slot = await c.db.fetch_value("SELECT operation_id FROM moves")
            async with c.db.transaction() as tx:
                await leave(tx, RestoreGuest, server["id"], server[HOST], slot=slot, running=True, aside=None)
                await leave(tx, RestoreGuest, server["id"], server[HOST], slot=None, running=True, aside=None)
            await all_done(c)
            assert await c.everything() == before

    run(scenario())


@pytest.mark.parametrize("kind", [RestoreGuest, ParkGuest])
def test_a_server_that_has_come_back_since_is_left_alone(database_url: str, kind: type[Operation]) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server, _ = await resized(c)
            await confirm(c, server["id"])
            slot = new_id()
            async with c.db.transaction() as tx:
                left = await leave(tx, kind, server["id"], server[HOST], slot=slot, running=True)
                await tx.execute("UPDATE operations SET run_at = 1e12 WHERE id = $1", left)
            await moved(c, server["id"], "migrate", {"host": server[HOST]})
            await confirm(c, server["id"])
            before = await c.everything()
            with hypervisors(c) as store:
                store.keep(server[HOST], guest_on(c, server[HOST], server["id"]), slot)
            await all_done(c)
            assert [(host, state) for host, state in await c.everything() if not state.slot] == before
            # What nobody will ever take out is removed, by whoever would have taken it out.
            assert len(await c.kept()) == (kind is ParkGuest)

    run(scenario())


@pytest.mark.parametrize("revert", [False, True])
def test_workers_that_die_after_something_was_left_do_not_make_it_stale(sqlite_url: str, revert: bool) -> None:
    """The host answers again, and would take a later command of the operation for the reason to forget it."""
    tests: Any = test_revert_resize.TestRevertResize() if revert else test_resize.TestMigrate()
    last = "hand back" if revert else "hand over"
    kills = [Fault("kill", "undo", point, frozenset({"stop guest"})) for point in ("before", "after")]

    async def scenario() -> None:
        db = await open_database(sqlite_url)
        world = await tests.prepare(db)
        before = await tests.census(db, world)
        world.config.operations.host_seconds = 0.1
        host = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        with rules(world.cloud) as sim:
            asked = sim.add_failure(host, "unpark", "unreachable", None, None)
            faults = Injection(tests.operation.kind, [Fault("fail", "forward", "before", frozenset({last})), *kills])
            async with db.transaction() as tx:
                identity = await tests.begin(tx, world)
            async with silent_from(sim, host, asked):
                row = await tests._work(db, world, identity, faults)
            assert row["state"] == "failed"
            assert (await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL")) == [
                {"kind": "restore guest"}
            ]
            sim.clear()
        async with working(db, world):
            await all_done(world.cloud)
        assert await tests.census(db, world) == before
        await tests.dismantle(world)
        await db.close()

    run(scenario())
