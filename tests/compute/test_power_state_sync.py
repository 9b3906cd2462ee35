"""Power states of servers follow the reports of hosts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from kilonova import clock
from kilonova.compute import power_state_sync
from kilonova.compute.operations.deferred_cleanup import CleanUpGuest, RestoreGuest
from kilonova.compute.servers import states
from kilonova.hosts.messages import Command, Power, Report
from kilonova.hosts.messages.verbs import ListGuests
from tests.compute.operations.support import begin_stored
from tests.hosts.support import guest
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud

A = "sim-001"


async def _report(c: FullCloud) -> Report:
    return Report(host=A, guests=[found for host, found in await c.list_guests_and_slots() if host == A])


def set_power(c: FullCloud, server_id: str, power: Power) -> None:
    c.hosts._store.set_power(A, server_id, power)


async def row_of(c: FullCloud, server_id: str) -> tuple[str, int]:
    row = await c.services.db.fetch_one("SELECT vm_state, power_state FROM servers WHERE id = $1", server_id)
    assert row is not None
    return row["vm_state"], row["power_state"]


@pytest.mark.parametrize(
    ("before", "power", "after"),
    [
        ("active", "running", ("active", 1)),
        ("active", "shutdown", ("stopped", 4)),
        ("active", "crashed", ("stopped", 6)),
        ("active", "paused", ("paused", 3)),
        ("active", "suspended", ("suspended", 7)),
        ("stopped", "running", ("active", 1)),
        ("paused", "running", ("active", 1)),
        ("suspended", "shutdown", ("stopped", 4)),
        ("rescued", "shutdown", ("rescued", 4)),
        ("rescued", "running", ("rescued", 1)),
        ("resized", "crashed", ("resized", 6)),
        ("error", "running", ("error", 1)),
        ("shelved", "shutdown", ("shelved", 4)),
        ("building", "running", ("building", 1)),
    ],
)
def test_state_of_idle_server_follows_its_guest(
    sqlite_url: str, before: str, power: Power, after: tuple[str, int]
) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            async with c.services.db.transaction() as tx:
                await tx.execute("UPDATE servers SET vm_state = $2 WHERE id = $1", server_id, before)
            set_power(c, server_id, power)
            agreed = await power_state_sync.sync(c.services, await _report(c))
            assert await row_of(c, server_id) == after
            assert agreed is (after == (before, 1))
            assert await power_state_sync.sync(c.services, await _report(c)), "the records agree now"

    run(scenario())


def test_report_is_confirmed_by_host_before_it_is_recorded(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            set_power(c, server_id, "shutdown")
            old = await _report(c)
            set_power(c, server_id, "running")
            assert not await power_state_sync.sync(c.services, old)
            assert await row_of(c, server_id) == (states.ACTIVE, states.RUNNING)

    run(scenario())


@pytest.mark.parametrize("change", ["begun", "ended", "moved"])
def test_concurrent_change_of_server_wins_over_report(database_url: str, change: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            set_power(c, server_id, "shutdown")
            report = await _report(c)
            hosts = c.services.hosts

            class ChangingTransport:
                async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
                    async with c.services.db.transaction() as tx:
                        if change == "begun":
                            far = {"guest_id": "x", "host": "far", "slot": None, "operation": "o"}
                            params = {**far, "round": 1, "epoch": 1, "running": True}
                            operation_id = await begin_stored(tx, RestoreGuest, params, host="far", server_id=server_id)
                            # Postponed, so that it does not end before the check.
                            await tx.execute("UPDATE operations SET run_at = 1e12 WHERE id = $1", operation_id)
                        elif change == "ended":
                            await tx.execute("UPDATE servers SET updated_at = $2 WHERE id = $1", server_id, clock.now())
                        else:
                            await tx.execute("UPDATE servers SET host = 'far' WHERE id = $1", server_id)
                    return await hosts.call(host, command, timeout=timeout)

            c.services.hosts = ChangingTransport()
            await power_state_sync.sync(c.services, report)
            assert await row_of(c, server_id) == (states.ACTIVE, states.RUNNING)

    run(scenario())


def test_report_changes_only_servers_of_the_host(database_url: str) -> None:
    """A compromised host reports the guests of another host as crashed, and says the same when it is asked again."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            booted = [await c.boot_active() for _ in range(2)]
            by_host = {server["OS-EXT-SRV-ATTR:host"]: server["id"] for server in booted}
            (attacker,) = by_host.keys() - {A}
            victim_id, own_id = by_host[A], by_host[attacker]
            before = await c.db.fetch_one("SELECT * FROM servers WHERE id = $1", victim_id)
            found = [state for _, state in await c.list_guests_and_slots()]
            forged = [structs.replace(state, power="crashed", sealed_password="forged") for state in found]
            hosts = c.services.hosts

            class Lying:
                async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
                    if host == attacker and isinstance(command.verb, ListGuests):
                        return forged
                    return await hosts.call(host, command, timeout=timeout)

            c.services.hosts = Lying()
            for guests in (forged, [], forged):
                await power_state_sync.sync(c.services, Report(host=attacker, guests=guests))
            assert await row_of(c, own_id) == (states.STOPPED, states.CRASHED)
            assert await c.db.fetch_one("SELECT * FROM servers WHERE id = $1", victim_id) == before
            assert c.services.unknown_guests[attacker] == {victim_id}
            unfinished = await c.db.fetch_value("SELECT COUNT(*) FROM operations WHERE finished_at IS NULL")
            assert unfinished == 0

    run(scenario())


def test_guest_being_restored_is_not_synced(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            set_power(c, server_id, "shutdown")
            rules = c.hosts._rules
            rules.add_failure(A, "power_on", "hang", None, "held")
            async with c.services.db.transaction() as tx:
                params = {"guest_id": server_id, "host": A, "slot": None, "running": True}
                fence = {"operation": server_id, "round": 1, "epoch": 1}
                await begin_stored(tx, RestoreGuest, {**params, **fence}, host=A)
            assert not await power_state_sync.sync(c.services, await _report(c))
            assert await row_of(c, server_id) == (states.ACTIVE, states.RUNNING)
            rules.clear()

    run(scenario())


def test_unknown_guests_are_counted_unless_being_cleaned_up(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            known = (await c.boot_active())["id"]
            unknown, cleaned_up = guest(), guest()
            c.hosts._store.add_guest(A, unknown, "disk")
            c.hosts._store.add_guest(A, cleaned_up, "disk")
            c.hosts._store.prepare_slot(A, guest(), "a slot")
            c.hosts._rules.add_failure(A, "destroy", "error", None, "stuck")
            async with c.services.db.transaction() as tx:
                params = {"guest_id": cleaned_up.id, "host": A, "slot": None, "operation": "o", "round": 1, "epoch": 1}
                await begin_stored(tx, CleanUpGuest, params, host=A)
            await power_state_sync.sync(c.services, await _report(c))
            assert power_state_sync.count_unknown_guests(c.services) == {A: 1}
            c.hosts._store.remove_guest(A, unknown.id)
            await power_state_sync.sync(c.services, await _report(c))
            assert power_state_sync.count_unknown_guests(c.services) == {A: 0}
            assert known

    run(scenario())
