"""Hosts that have executed commands of a newer database than the present one are not called."""

from __future__ import annotations

from pathlib import Path

import pytest

from kilonova.hosts.embedded import EmbeddedConfig, EmbeddedHosts
from kilonova.hosts.fence import FencedHosts
from kilonova.hosts.heartbeat import Heartbeat
from kilonova.hosts.transport import HostUnreachable, StaleEpoch, describe, list_guests
from kilonova.store import Database, incarnation
from kilonova.store.incarnation import Mark
from tests.hosts.support import HOST, spawn
from tests.support import run
from tests.support.databases import opened


async def lease(db: Database, hosts: FencedHosts, number: int) -> None:
    """Take leases until `number`, as a worker does."""
    async with db.transaction() as tx:
        await tx.execute("UPDATE incarnation SET leases = $1", number)
    hosts.leased(number)


async def fenced(db: Database, local: EmbeddedHosts) -> FencedHosts:
    """The hosts as a process sees them that starts now."""
    return FencedHosts(local, db, await incarnation.set_up(db))


async def restore_by_hand(db: Database, mark: Mark) -> None:
    async with db.transaction() as tx:
        await tx.execute("UPDATE incarnation SET number = $1, leases = $2", *mark)


def test_host_that_is_ahead_of_the_database_is_not_called(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        local = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=2))
        async with opened(database_url) as db:
            hosts = await fenced(db, local)
            copy = await incarnation.read(db)
            await lease(db, hosts, 3)
            await hosts.call(HOST, spawn())
            await restore_by_hand(db, copy)

            hosts = await fenced(db, local)
            with pytest.raises(HostUnreachable, match=r"older than host sim-001.*lease 3.*kilonova db adopt"):
                await hosts.call(HOST, spawn("guest-2", operation="op-2"))
            with pytest.raises(HostUnreachable):
                await describe(hosts, HOST)
            assert (await describe(hosts, "sim-002")).host == "sim-002", "the other host has executed nothing"
            assert [guest.id for guest in await list_guests(local, HOST)] == ["guest-1"]
            assert hosts.unreachable(hosts.names) == [HOST]
            await Heartbeat(db, hosts).beat()
            assert [row["host"] for row in await db.fetch("SELECT host FROM services")] == ["sim-002"]

            async with db.transaction() as tx:
                await incarnation.begin_new(tx)
            hosts = await fenced(db, local)
            await hosts.call(HOST, spawn("guest-2", operation="op-2"))
            assert hosts.ahead == {}
        local.close()

    run(scenario())


def test_copy_of_an_earlier_incarnation_is_noticed(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        local = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1))
        async with opened(database_url) as db:
            hosts = await fenced(db, local)
            await lease(db, hosts, 3)
            copy = await incarnation.read(db)
            async with db.transaction() as tx:
                await incarnation.begin_new(tx)
            replaced, hosts = hosts, await fenced(db, local)
            await hosts.call(HOST, spawn())
            with pytest.raises(StaleEpoch, match="was replaced"):  # a process that was not stopped for the restore
                await replaced.call(HOST, spawn(operation="op-2"))
            await restore_by_hand(db, copy)
            hosts = await fenced(db, local)
            with pytest.raises(HostUnreachable, match=r"older than host"):
                await hosts.call(HOST, spawn(operation="op-2"))
        local.close()

    run(scenario())


def test_lease_of_another_process_is_no_reason_for_refusal(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        local = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1))
        async with opened(database_url) as db:
            first, second = await fenced(db, local), await fenced(db, local)
            await lease(db, first, 3)
            await first.call(HOST, spawn())
            await second.call(HOST, spawn("guest-2", operation="op-2"))
            assert len(await second.facts(second.names)) == 1
        local.close()

    run(scenario())


def test_new_database_is_accepted_by_hosts_of_an_earlier_one(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        local = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1))
        async with opened(database_url) as db:
            hosts = await fenced(db, local)
            await lease(db, hosts, 3)
            await hosts.call(HOST, spawn())
            async with db.transaction() as tx:
                await tx.execute("DELETE FROM incarnation")
            hosts = await fenced(db, local)
            await hosts.call(HOST, spawn("guest-2", operation="op-2"))
        local.close()

    run(scenario())
