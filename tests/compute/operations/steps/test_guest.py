"""Steps that stop a guest, park it and build a new one: missing guests, servers being deleted, states after rebuild."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.compute.operations.delete import Delete
from kilonova.compute.operations.rebuild import Rebuild
from kilonova.compute.operations.steps import guest
from kilonova.compute.servers import states
from kilonova.operations import Failed, Operation, begin
from tests.compute.operations.steps.support import begin_leased, get_server
from tests.compute.servers.support import rules, sim_store
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.full_cloud import FullCloud, full_cloud

HOST = "sim-001"


async def begin_rebuild(c: FullCloud) -> Operation:
    server = await c.boot_active(networks="none")
    return await begin_leased(c, Rebuild, server["id"], columns={"image_id": c.image_id, "name": "rebuilt"})


async def guests_and_slots(c: FullCloud) -> list[tuple[str, str]]:
    """Slot and power of each guest."""
    return sorted((state.slot, state.power) for _, state in await c.list_guests_and_slots())


async def set_state(c: FullCloud, op: Operation, **columns: Any) -> None:
    async with c.db.transaction() as tx:
        for column, value in columns.items():
            await tx.execute(f"UPDATE servers SET {column} = $2 WHERE id = $1", op.server_id, value)


def test_unpark_restores_and_starts_guest(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            op = await begin_rebuild(c)
            for _ in range(2):
                await guest.stop_existing(op)
            assert await guests_and_slots(c) == [("", "shutdown")]
            for _ in range(2):
                await guest.park(op)
            assert await guests_and_slots(c) == [(op.id, "shutdown")]
            for _ in range(2):
                await guest.unpark(op)
            assert await guests_and_slots(c) == [("", "running")]

    run(scenario())


@pytest.mark.parametrize("reason", ["stopped", "being deleted"])
def test_unpark_leaves_guest_stopped(database_url: str, reason: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            op = await begin_rebuild(c)
            if reason == "stopped":
                await set_state(c, op, vm_state=states.STOPPED, power_state=states.SHUTDOWN)
            await guest.stop_existing(op)
            await guest.park_existing(op)
            if reason == "being deleted":
                async with c.db.transaction() as tx:
                    await begin(tx, Delete, server_id=op.server_id, project_id=DEMO)
            await guest.unpark(op)
            assert await guests_and_slots(c) == [("", "shutdown")]

    run(scenario())


def test_server_without_guest_is_rebuilt_but_not_moved(database_url: str) -> None:
    """`park` is of moves, which need the disks of the guest; rebuild does not."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            op = await begin_rebuild(c)
            with sim_store(c) as store:
                store.remove_guest(HOST, str(op.server_id))
            with pytest.raises(Failed, match=r"^The host could not park guest: the guest is missing$"):
                await guest.park(op)
            await guest.stop_existing(op)
            await guest.park_existing(op)
            await guest.rebuild(op)
            assert await guests_and_slots(c) == [("", "running")]

    run(scenario())


def test_other_host_errors_fail_the_rebuild(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            op = await begin_rebuild(c)
            with rules(c) as sim:
                sim.add_failure(HOST, "park", "error", 1, "no space")
            with pytest.raises(Failed, match=r"^The host could not park guest: refused by the hypervisor$") as failure:
                await guest.park_existing(op)
            assert failure.value.fault == f"{HOST}: no space"

    run(scenario())


@pytest.mark.parametrize("vm_state", [states.ACTIVE, states.ERROR, states.STOPPED])
def test_only_stopped_server_stays_stopped_after_rebuild(database_url: str, vm_state: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            op = await begin_rebuild(c)
            await set_state(c, op, vm_state=vm_state)
            for step in (guest.stop_existing, guest.park_existing, guest.rebuild):
                await step(op)
            async with c.db.transaction() as tx:
                await guest.settle_rebuilt(op, tx)
            server = await get_server(c, op.server_id)
            stopped = vm_state == states.STOPPED
            assert (server.vm_state, server.power_state, server.name) == (
                (states.STOPPED, states.SHUTDOWN, "rebuilt") if stopped else (states.ACTIVE, states.RUNNING, "rebuilt")
            )
            assert (await c.guests())[server.id] == (HOST, "shutdown" if stopped else "running")
            deferred = await c.db.fetch("SELECT host FROM operations WHERE kind = 'clean_up_slot'")
            assert deferred == [{"host": HOST}], "the old guest is destroyed after the transaction"

    run(scenario())
