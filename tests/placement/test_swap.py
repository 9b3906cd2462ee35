"""Swapping the allocations of two consumers changes no usage."""

from __future__ import annotations

import asyncio

from kilonova.placement import (
    ConcurrentUpdate,
    Consumer,
    Inventory,
    claim,
    get_allocations,
    get_usages,
    release,
    swap_allocations,
)
from tests.placement.support import all_rows, consumer, provider, write
from tests.support import run
from tests.support.databases import opened


async def _two_full_hosts(db):
    """Two hosts and two consumers, each of which fills one host."""
    first, second = provider("one", VCPU=Inventory(4)), provider("two", VCPU=Inventory(2))
    await write(db, first, second)
    server, move = consumer(), Consumer(consumer().uuid, "p", "u", "MIGRATION")
    async with db.transaction() as tx:
        assert await claim(tx, server, {first.uuid: {"VCPU": 4}})
        assert await claim(tx, move, {second.uuid: {"VCPU": 2}})
    return first.uuid, second.uuid, server, move


def test_swap_exchanges_allocations(database_url):
    async def scenario():
        async with opened(database_url) as db:
            first, second, server, move = await _two_full_hosts(db)
            async with db.transaction() as tx:
                await swap_allocations(tx, server, move)
            held = await get_allocations(db, [server.uuid, move.uuid])
            assert held == {server.uuid: {second: {"VCPU": 2}}, move.uuid: {first: {"VCPU": 4}}}
            assert await get_usages(db, [first, second]) == {first: {"VCPU": 4}, second: {"VCPU": 2}}

    run(scenario())


def test_swap_with_consumer_without_allocations(database_url):
    async def scenario():
        async with opened(database_url) as db:
            _, second, server, move = await _two_full_hosts(db)
            async with db.transaction() as tx:
                await release(tx, server.uuid)
            async with db.transaction() as tx:
                await swap_allocations(tx, server, move)
            assert await get_allocations(db, [server.uuid, move.uuid]) == {server.uuid: {second: {"VCPU": 2}}}
            kinds = await db.fetch("SELECT uuid, type FROM consumers")
            assert kinds == [{"uuid": server.uuid, "type": "INSTANCE"}]

    run(scenario())


def test_swap_of_consumers_without_allocations(database_url):
    async def scenario():
        async with opened(database_url) as db:
            before = await all_rows(db)
            async with db.transaction() as tx:
                await swap_allocations(tx, consumer(), consumer())
            assert await all_rows(db) == before

    run(scenario())


def test_swap_increments_generations(database_url):
    async def scenario():
        async with opened(database_url) as db:
            first, second, server, move = await _two_full_hosts(db)
            sql = "SELECT uuid, generation FROM resource_providers UNION ALL SELECT uuid, generation FROM consumers"
            before = {row["uuid"]: row["generation"] for row in await db.fetch(sql)}
            async with db.transaction() as tx:
                await swap_allocations(tx, server, move)
            after = {row["uuid"]: row["generation"] for row in await db.fetch(sql)}
            assert all(after[uuid] > before[uuid] for uuid in (first, second, server.uuid, move.uuid))

    run(scenario())


def test_swap_during_concurrent_claims_and_releases(database_url):
    """Conflicting transactions are retried; usage never exceeds the capacity."""

    async def scenario():
        async with opened(database_url) as db:
            first, second, server, move = await _two_full_hosts(db)

            async def swap_repeatedly():
                for _ in range(10):
                    try:
                        async with db.transaction() as tx:
                            await swap_allocations(tx, server, move)
                    except ConcurrentUpdate:
                        continue

            async def claim_and_release():
                for _ in range(10):
                    other = consumer()
                    async with db.transaction() as tx:
                        assert not await claim(tx, other, {first: {"VCPU": 1}, second: {"VCPU": 1}})

            await asyncio.gather(swap_repeatedly(), swap_repeatedly(), claim_and_release())
            assert await get_usages(db, [first, second]) == {first: {"VCPU": 4}, second: {"VCPU": 2}}

    run(scenario())
